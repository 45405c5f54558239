//! The end of a mount in the process that served it.

use std::path::Path;

use ferrofs_image::{MemoryPool, OpenOptions};

use crate::mounted::TestMount;

/// The session owns the file system, which owns a notifier, which must not own the session.
#[test]
fn an_ended_mount_uses_no_memory() {
    let memory = MemoryPool::new(64 << 20).unwrap();
    let before = memory.budget().used_bytes();
    let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/demo.erofs");
    let options = OpenOptions::new().memory(&memory);
    let Some(mounted) = TestMount::of_opened(&image, &options) else { return };
    assert!(mounted.read_all() > 0);
    assert!(memory.budget().used_bytes() - memory.idle_bytes() > before);
    drop(mounted);
    assert_eq!(memory.budget().used_bytes() - memory.idle_bytes(), before);
}
