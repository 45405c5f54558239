//! How much of a stream a caller asks for.

/// How much of the stream is to be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Want {
    /// The stream must yield exactly `output.len()` bytes and end there.
    Whole,
    /// The first `output.len()` bytes of a stream that may yield more.
    ///
    /// What lies behind them in the stream is not judged, so a prefix may decode although the whole
    /// does not. A MicroLZMA stream does not say where it ends: asked for more than went into it, it
    /// may make bytes up from the last bits of its range coder, so ask for no more.
    Prefix,
}
