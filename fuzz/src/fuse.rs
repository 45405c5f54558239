//! The target of mounts: requests of the kernel, answered from an image without a kernel.
//!
//! Input: two bytes of length, an image as [`crate::image_input`] reads it, then requests. A request is one of the
//! kernel's with a node and a name that were seen before, or any bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferrofs_image::{FileType, Image, Nid, Xattr};
use ferrofs_mount::MountSettings;
use ferrofs_mount::fuzzing::{HandledMessage, InlineMount};

use crate::image_input::{decode, open, problems};
use crate::input::Input;

/// Requests of one input.
const REQUESTS_MAX: usize = 40;
/// Nodes and names that are remembered.
const NODES_MAX: usize = 32;
/// A reply to READ of more bytes is not compared.
const READ_MAX_BYTES: u32 = 16 << 10;

/// Names of a directory that are compared.
const NAMES_MAX: usize = 400;

const OUT_HEADER_BYTES: usize = 16;
/// An entry with its attributes, before each directory entry of READDIRPLUS.
const ENTRY_BYTES: usize = 128;
const DIRENT_BYTES: usize = 24;
/// Where the size lies in attributes.
const SIZE_AT: usize = 8;
/// The kernel takes smaller errors for a broken file system.
const ERROR_MIN: i32 = -511;

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const READLINK: u32 = 5;
const READ: u32 = 15;
const GETXATTR: u32 = 22;
const LISTXATTR: u32 = 23;
const READDIR: u32 = 28;
const IOCTL: u32 = 39;
const READDIRPLUS: u32 = 44;
const LSEEK: u32 = 46;
/// The requests that a file system handles, most of all those that read.
const OPCODES: [u32; 16] = [
    LOOKUP,
    LOOKUP,
    LOOKUP,
    GETATTR,
    READLINK,
    READ,
    READ,
    READ,
    GETXATTR,
    GETXATTR,
    LISTXATTR,
    READDIR,
    IOCTL,
    READDIRPLUS,
    READDIRPLUS,
    LSEEK,
];
/// The request for statistics.
const STATS_IOCTL: u32 = 0xD000_46E0;

/// Answers requests.
pub fn fuse(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let length = usize::from(input.u16());
    let Some(image) = open(&(Arc::new(decode(input.take(length))) as _), 0) else { return };
    let settings = MountSettings::default().listeners(0);
    let mount = InlineMount::new(image.clone(), &settings).expect("memory for replies");
    let mut client = Client {
        root: image.superblock().root.raw(),
        image,
        mount,
        nodes: vec![1, 0, u64::MAX, 1 << 63],
        names: vec![b"a".to_vec(), b"".to_vec(), vec![b'n'; 256], b"user.a".to_vec()],
    };
    for unique in 1..=REQUESTS_MAX as u64 {
        if input.is_empty() {
            break;
        }
        client.step(&mut input, 2 * unique);
    }
}

/// What a kernel knows.
struct Client {
    image: Image,
    mount: InlineMount,
    root: u64,
    nodes: Vec<u64>,
    names: Vec<Vec<u8>>,
}

/// A request.
struct Request {
    opcode: u32,
    unique: u64,
    node: u64,
    name: Vec<u8>,
    offset: u64,
    size: u32,
    /// What lies behind the header.
    body: Vec<u8>,
}

impl Client {
    fn step(&mut self, input: &mut Input<'_>, unique: u64) {
        let choice = input.u8();
        if choice & 0xC0 == 0xC0 {
            let length = usize::from(input.u8());
            let (_, replies) = self.mount.handle(input.take(length)).expect("memory");
            assert!(replies.is_empty() || replies.len() >= OUT_HEADER_BYTES);
            return;
        }
        let request = self.request(choice, input, unique);
        let header = [
            &u32::try_from(40 + request.body.len()).unwrap_or(0).to_le_bytes()[..],
            &request.opcode.to_le_bytes(),
            &unique.to_le_bytes(),
            &request.node.to_le_bytes(),
            &u32::from(choice >> 5).to_le_bytes(),
            &[0; 12],
        ]
        .concat();
        let (handled, reply) =
            self.mount.handle(&[&header, &request.body[..]].concat()).expect("memory");
        assert_eq!(handled, HandledMessage::Request);
        match check_reply(&request, &reply) {
            Some(body) => self.check_body(&request, body),
            None => self.check_error(&request, &reply),
        }
    }

    fn request(&self, choice: u8, input: &mut Input<'_>, unique: u64) -> Request {
        let opcode = OPCODES[usize::from(choice & 15)];
        let [node, name, offset, size] = input.array();
        let node = self.nodes[usize::from(node) % self.nodes.len()];
        let name = if name == 0xFF {
            let length = usize::from(input.u8());
            input.take(length).iter().copied().filter(|byte| *byte != 0).collect()
        } else {
            self.names[usize::from(name) % self.names.len()].clone()
        };
        let offset = match offset {
            0..=0x7F => u64::from(offset) << 9,
            0xFF => input.u64(),
            _ => u64::from(offset & 0x7F) * 997,
        };
        let size = if size == 0xFF { input.u32() } else { u32::from(size) * 129 };
        let size_field = size.to_le_bytes();
        let with_nul = [&name[..], &[0]].concat();
        let body = match opcode {
            LOOKUP => with_nul,
            READ | READDIR | READDIRPLUS => {
                [&[0; 8][..], &offset.to_le_bytes(), &size_field, &[0; 20]].concat()
            }
            GETXATTR => [&size_field[..], &[0; 4], &with_nul].concat(),
            LISTXATTR => [&size_field[..], &[0; 4]].concat(),
            LSEEK => {
                [&[0; 8][..], &offset.to_le_bytes(), &(size & 7).to_le_bytes(), &[0; 4]].concat()
            }
            IOCTL => {
                let page =
                    [&b"ferrofs?"[..], &1u32.to_le_bytes(), &(size & 3).to_le_bytes()].concat();
                let fields =
                    [&STATS_IOCTL.to_le_bytes()[..], &[0; 8], &16u32.to_le_bytes(), &size_field];
                [&[0; 12], &fields.concat()[..], &page].concat()
            }
            _ => Vec::new(),
        };
        Request { opcode, unique, node, name, offset, size, body }
    }

    fn nid(&self, node: u64) -> Nid {
        let number = if node == u64::MAX { 0 } else { node };
        Nid::new(match number {
            1 => self.root,
            _ if number == self.root => 1,
            _ => number,
        })
    }

    /// Compares a reply with what the image has, and remembers what it names.
    fn check_body(&mut self, request: &Request, body: &[u8]) {
        let inode = self.image.inode(self.nid(request.node));
        match request.opcode {
            // Handles of files look up themselves and their parent.
            LOOKUP if matches!(&request.name[..], b"." | b"..") => {}
            LOOKUP => {
                let node = number(body, 0);
                let found = inode.and_then(|dir| self.image.lookup(&dir, &request.name));
                match found {
                    Ok(found) => {
                        let nid = found.map(|inode| inode.nid());
                        assert_eq!(nid, (node != 0).then(|| self.nid(node)));
                    }
                    Err(error) => panic!("a name where the image has none: {error}"),
                }
                self.remember(node, &request.name);
            }
            GETATTR => {
                let inode = inode.expect("attributes of no inode");
                assert_eq!(number(body, 16 + SIZE_AT), inode.size());
            }
            READLINK => {
                let target = self.image.read_link(&inode.expect("a target of no inode"));
                assert_eq!(target.expect("a target"), body);
            }
            READ if request.size <= READ_MAX_BYTES => {
                let inode = inode.expect("bytes of no inode");
                let mut bytes = vec![0; usize::try_from(request.size).expect("few")];
                let read = self.image.read_at(&inode, request.offset, &mut bytes);
                let is_same = read.is_ok_and(|count| bytes[..count] == *body);
                assert!(is_same || problems(&self.image) > 0, "a mount reads other bytes");
            }
            GETXATTR | LISTXATTR => {
                let xattrs = self.image.xattrs(&inode.expect("attributes of no inode"));
                check_xattrs(request, body, &xattrs.expect("attributes"));
            }
            READDIR => self.check_entries(request, body, 0),
            READDIRPLUS => self.check_entries(request, body, ENTRY_BYTES),
            _ => {}
        }
    }

    /// What the image answers, the mount answers, too. Nothing here is banned or late, and memory is that of the image.
    fn check_error(&self, request: &Request, reply: &[u8]) {
        let Ok(inode) = self.image.inode(self.nid(request.node)) else { return };
        let is_answered = match request.opcode {
            LOOKUP if matches!(&request.name[..], b"." | b"..") => false,
            LOOKUP => self.image.lookup(&inode, &request.name).is_ok_and(|found| found.is_some()),
            GETATTR => true,
            READLINK => self.image.read_link(&inode).is_ok(),
            READ if request.size <= READ_MAX_BYTES && inode.file_type() == FileType::Regular => {
                let mut bytes = vec![0; usize::try_from(request.size).expect("few")];
                self.image.read_at(&inode, request.offset, &mut bytes).is_ok()
                    && problems(&self.image) == 0
            }
            _ => false,
        };
        let error = i32::from_le_bytes(reply[4..8].try_into().expect("four bytes"));
        assert!(!is_answered, "error {error} for a request {} of the image", request.opcode);
    }

    /// The names of a directory and what they name; `None` if it cannot be listed, or is long.
    fn listed(&self, node: u64) -> Option<BTreeMap<Vec<u8>, Nid>> {
        let dir = self.image.inode(self.nid(node)).ok()?;
        let mut names = BTreeMap::new();
        for entry in self.image.read_dir(&dir).ok()? {
            let entry = entry.ok()?;
            names.insert(entry.name.to_vec(), entry.nid);
            if names.len() > NAMES_MAX {
                return None;
            }
        }
        Some(names)
    }

    fn check_entries(&mut self, request: &Request, mut body: &[u8], entry_bytes: usize) {
        let listed = self.listed(request.node);
        let mut count = 0;
        let is_all = request.offset == 0
            && body.len() + entry_bytes + DIRENT_BYTES + 256 <= request.size as usize;
        while !body.is_empty() {
            let node = if entry_bytes > 0 { number(body, 0) } else { 0 };
            let length = number(body, entry_bytes + 16) & 0xFFFF_FFFF;
            let length = usize::try_from(length).expect("a length");
            let start = entry_bytes + DIRENT_BYTES;
            let name = body[start..start + length].to_vec();
            let is_name =
                (1..=255).contains(&length) && !name.contains(&0) && !name.contains(&b'/');
            assert!(is_name, "an entry of the name {}", name.escape_ascii());
            if let Some(listed) = &listed
                && !matches!(&name[..], b"." | b"..")
            {
                count += 1;
                let shown = name.escape_ascii();
                let Some(nid) = listed.get(&name) else { panic!("{shown} has come from nowhere") };
                assert!(node == 0 || self.nid(node) == *nid, "{shown} is another inode");
            }
            self.remember(node, &name);
            body = &body[(start + length).next_multiple_of(8)..];
        }
        if let Some(listed) = listed
            && is_all
        {
            assert_eq!(count, listed.len(), "a mount lists other names");
        }
    }

    fn remember(&mut self, node: u64, name: &[u8]) {
        if node != 0 && self.nodes.len() < NODES_MAX && !self.nodes.contains(&node) {
            self.nodes.push(node);
        }
        if self.names.len() < NODES_MAX && !self.names.iter().any(|known| known == name) {
            self.names.push(name.to_vec());
        }
    }
}

/// Compares the value or the names of attributes with those of the image. A mount may leave out names that no call takes.
fn check_xattrs(request: &Request, body: &[u8], xattrs: &[Xattr]) {
    let named = |name: &[u8]| xattrs.iter().find(|xattr| xattr.name == name);
    match (request.opcode, request.size) {
        (GETXATTR, size) => {
            let value = &named(&request.name).expect("an attribute of the image").value;
            if size == 0 {
                assert_eq!(number(body, 0) & 0xFFFF_FFFF, value.len() as u64);
            } else {
                assert_eq!(body, &value[..], "a mount has another value");
            }
        }
        (_, 0) => {}
        _ => {
            for name in body.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
                assert!(named(name).is_some(), "{} has come from nowhere", name.escape_ascii());
            }
        }
    }
}

/// A request has one reply, as long as it says, and no longer than was asked for. Returns its body unless it is an error.
fn check_reply<'a>(request: &Request, reply: &'a [u8]) -> Option<&'a [u8]> {
    assert!(reply.len() >= OUT_HEADER_BYTES, "request {} without a reply", request.opcode);
    assert_eq!(number(reply, 0) & 0xFFFF_FFFF, reply.len() as u64, "not one reply");
    let error = i32::from_le_bytes(reply[4..8].try_into().expect("four bytes"));
    assert_eq!(number(reply, 8), request.unique);
    assert!((ERROR_MIN..=0).contains(&error), "error {error}");
    let body = &reply[OUT_HEADER_BYTES..];
    if error != 0 {
        assert!(body.is_empty(), "an error with a body");
        return None;
    }
    let most = match request.opcode {
        LOOKUP => ENTRY_BYTES,
        GETATTR => 104,
        READLINK => 4096,
        GETXATTR | LISTXATTR if request.size == 0 => 8,
        IOCTL => usize::try_from(request.size).expect("32 bits").saturating_add(16),
        LSEEK => 8,
        _ => usize::try_from(request.size).expect("32 bits"),
    };
    assert!(body.len() <= most, "{} bytes for a request {} of {most}", body.len(), request.opcode);
    Some(body)
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> Client {
        let image = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/lz4.erofs");
        let image = Image::open(image).expect("a test image");
        let settings = MountSettings::default().listeners(0);
        let mount = InlineMount::new(image.clone(), &settings).expect("memory for replies");
        let root = image.superblock().root.raw();
        Client { image, mount, root, nodes: Vec::new(), names: Vec::new() }
    }

    fn request(opcode: u32) -> Request {
        Request {
            opcode,
            unique: 2,
            node: 1,
            name: Vec::new(),
            offset: 0,
            size: 4096,
            body: Vec::new(),
        }
    }

    #[test]
    #[should_panic(expected = "error -5 for a request 3")]
    fn an_error_where_the_image_answers_is_found() {
        let header = [&16u32.to_le_bytes()[..], &(-5i32).to_le_bytes(), &2u64.to_le_bytes()];
        client().check_error(&request(GETATTR), &header.concat());
    }

    #[test]
    #[should_panic(expected = "a mount lists other names")]
    fn a_directory_without_its_names_is_found() {
        client().check_entries(&request(READDIR), &[], 0);
    }
}
