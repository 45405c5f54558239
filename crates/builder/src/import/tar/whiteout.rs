//! Whiteouts: names by which a layer takes away what lower layers have, as AUFS and OCI images spell them.
//!
//! `.wh.NAME` takes NAME away, `.wh..wh..opq` all that lower layers have in its directory. Other names that begin
//! with `.wh..wh.` are AUFS's own bookkeeping.

/// What becomes of whiteouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhiteoutPolicy {
    /// They are files like others.
    #[default]
    Keep,
    /// They become those of overlayfs (`--aufs`): a character device 0:0 in place of NAME, the xattr
    /// `trusted.overlay.opaque` on the directory; a directory with such devices gets an empty
    /// `trusted.overlay.origin`, by which overlayfs knows that it has to hide them.
    ToOverlay,
    /// They take away what the archives before this one have, and are not in the tree themselves.
    Apply,
}

/// What the last component of a path asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhiteoutMarker<'a> {
    /// Nothing: it is a name.
    None,
    /// To take this name away.
    Name(&'a [u8]),
    /// To take away all that lower layers have in the directory.
    Opaque,
    /// Nothing that matters outside AUFS.
    Bookkeeping,
}

/// What `path`, a list of components, asks for.
pub(super) fn whiteout_marker<'a>(path: &[&'a [u8]]) -> Result<WhiteoutMarker<'a>, &'static str> {
    let Some((last, parents)) = path.split_last() else { return Ok(WhiteoutMarker::None) };
    if parents.iter().any(|name| name.starts_with(b".wh..wh.")) {
        return Ok(WhiteoutMarker::Bookkeeping);
    }
    if parents.iter().any(|name| name.starts_with(b".wh.")) {
        return Err("lies below a whiteout");
    }
    match last.strip_prefix(b".wh.") {
        None => Ok(WhiteoutMarker::None),
        Some(b".wh..opq") => Ok(WhiteoutMarker::Opaque),
        Some(name) if name.starts_with(b".wh.") => Ok(WhiteoutMarker::Bookkeeping),
        Some(b"" | b"." | b"..") => Err("is a whiteout of nothing"),
        Some(name) => Ok(WhiteoutMarker::Name(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_told_from_names() {
        for (path, wanted) in [
            (&[][..], Ok(WhiteoutMarker::None)),
            (&[&b"a"[..], b"b"], Ok(WhiteoutMarker::None)),
            (&[b"a", b".wh.b"], Ok(WhiteoutMarker::Name(b"b"))),
            (&[b".wh..b"], Ok(WhiteoutMarker::Name(b".b"))),
            (&[b"a", b".wh..wh..opq"], Ok(WhiteoutMarker::Opaque)),
            (&[b".wh..wh.plnk"], Ok(WhiteoutMarker::Bookkeeping)),
            (&[b".wh..wh.plnk", b"12.34"], Ok(WhiteoutMarker::Bookkeeping)),
            (&[b".wh.a", b"b"], Err("lies below a whiteout")),
            (&[b".wh."], Err("is a whiteout of nothing")),
            (&[b".wh..."], Err("is a whiteout of nothing")),
        ] {
            assert_eq!(whiteout_marker(path), wanted);
        }
    }
}
