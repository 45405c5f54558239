//! Every algorithm against data, against a second implementation and against damage.
//!
//! `suite` holds the properties and runs them over the four entries of `codecs`; what is special to
//! one algorithm is in the file of its name.

#[cfg(test)]
mod allocation;
#[cfg(test)]
mod codecs;
#[cfg(test)]
mod counting_allocator;
#[cfg(test)]
mod deflate;
#[cfg(test)]
mod encoding;
#[cfg(test)]
mod guarded;
#[cfg(test)]
mod liblzma;
#[cfg(test)]
mod lz4;
#[cfg(test)]
mod lz4_blocks;
#[cfg(test)]
mod lz4_window;
#[cfg(test)]
mod lzma;
#[cfg(test)]
mod random;
#[cfg(test)]
mod samples;
#[cfg(test)]
mod settings;
#[cfg(test)]
mod suite;
#[cfg(test)]
mod zstd;
