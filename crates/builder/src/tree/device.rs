//! Devices beside the image, on which bytes of a tree's files lie already.

/// A file or block device that an image can refer to. The first of a tree has the number 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// A name or digest for the image's device table, padded with zeros; all zeros for none.
    pub tag: [u8; 64],
    /// Its size in bytes.
    pub bytes: u64,
}

/// A range of a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceExtent {
    /// The first byte in the file.
    pub start: u64,
    /// How many; not 0.
    pub bytes: u64,
    /// Where they lie; `None` for bytes that lie on no device, which the image takes in.
    pub place: Option<DeviceAddress>,
}

impl SourceExtent {
    /// The byte of the file behind it.
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }
}

/// A byte of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAddress {
    /// The device's number, from 1.
    pub device: u16,
    /// The byte of it.
    pub offset: u64,
}
