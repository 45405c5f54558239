//! The capabilities of the calling thread, given away except for a few. Called by
//! [`super::Sandbox::enter`].

use std::io;

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// Takes everything but `kept` from what the calling thread has; gives it nothing.
pub(super) fn drop_all_but(kept: CapabilitySet) -> io::Result<()> {
    let had = capabilities(None)?;
    if had.effective.contains(CapabilitySet::SETPCAP) {
        empty_bounding_set()?;
    }
    // What is not inheritable leaves the ambient set, too.
    set_capabilities(
        None,
        CapabilitySets {
            effective: had.effective & kept,
            permitted: had.permitted & kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(())
}

/// The bounding set matters to programs started later only. Without `CAP_SETPCAP` it cannot be
/// emptied; then it is "no new privileges" alone that keeps such a program from gaining any.
fn empty_bounding_set() -> io::Result<()> {
    for capability in CapabilitySet::all().iter() {
        match capability_is_in_bounding_set(capability) {
            Ok(true) => remove_capability_from_bounding_set(capability)?,
            // INVAL: newer than the kernel.
            Ok(false) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
