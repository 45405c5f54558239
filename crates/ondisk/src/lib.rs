//! ondisk
