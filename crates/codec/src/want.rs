//! How much of a stream a caller asks for.

/// How much of the stream is to be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecodeMode {
    /// The stream must yield exactly `output.len()` bytes and end there.
    Whole,
    /// The first `output.len()` bytes of a stream that may yield more.
    ///
    /// What lies behind them in the stream is not judged, so a prefix may decode although the whole
    /// does not. Input that ends before the output is full is an error. But a MicroLZMA stream does
    /// not say where it ends: asked for more than went into it, it may make a few bytes up from the
    /// last bits of its range coder, and may be at its end behind them, so ask for no more.
    Prefix,
}
