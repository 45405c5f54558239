//! Caches that are damaged while nobody looks: in each way the bytes are right afterwards.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ferrofs_remote::FetchClient;
use ferrofs_remote::cache::CacheDirectory;

use crate::server::Server;
use crate::world::{World, body, check};

const LENGTH: u64 = (4 << 20) + 777;
const HEADER: u64 = 64;
const RECORD: u64 = 16;

/// What is done to the files of an object.
type Damage = Box<dyn Fn(&Path)>;

fn flip(file: &'static str, at: u64, bit: u8) -> Damage {
    Box::new(move |folder| {
        let file = fs::File::options().read(true).write(true).open(folder.join(file)).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ (1 << bit)], at).unwrap();
    })
}

fn change(file: &'static str, change: impl Fn(&mut Vec<u8>) + 'static) -> Damage {
    Box::new(move |folder| {
        let mut bytes = fs::read(folder.join(file)).unwrap();
        change(&mut bytes);
        fs::write(folder.join(file), bytes).unwrap();
    })
}

fn damages() -> Vec<(String, Damage)> {
    let mut all: Vec<(String, Damage)> = Vec::new();
    let fields =
        [("magic", 0), ("version", 8), ("bits", 12), ("length", 16), ("key", 24), ("sum", 60)];
    for (name, at) in fields {
        all.push((format!("header, {name}"), flip("index", at, 0)));
        all.push((format!("header, {name}, last bit"), flip("index", at + 3, 7)));
    }
    for (name, at) in [("checksum", 0), ("generation", 8), ("seal", 12)] {
        for record in [0, 3] {
            let at = HEADER + record * RECORD + at;
            all.push((format!("record {record}, {name}"), flip("index", at, 5)));
        }
    }
    for (name, at) in [("first", 0), ("a middle", 2 << 20), ("last", LENGTH - 1)] {
        all.push((format!("{name} byte of the data"), flip("data", at, 3)));
    }
    let mut add = |name: &str, damage: Damage| all.push((name.to_owned(), damage));
    for file in ["index", "data"] {
        add(&format!("{file}, empty"), change(file, Vec::clear));
        add(&format!("{file}, half"), change(file, |bytes| bytes.truncate(bytes.len() / 2)));
        add(&format!("{file}, a byte less"), change(file, |bytes| bytes.truncate(bytes.len() - 1)));
        add(&format!("{file}, zeros"), change(file, |bytes| bytes.fill(0)));
        add(&format!("{file}, ones"), change(file, |bytes| bytes.fill(0xff)));
        add(&format!("{file}, longer"), change(file, |bytes| bytes.extend([7; 100])));
        add(
            &format!("{file}, missing"),
            Box::new(move |folder| fs::remove_file(folder.join(file)).unwrap()),
        );
    }
    add("records swapped", change("index", |bytes| bytes[64..96].rotate_left(16)));
    add("all records the first", change("index", |bytes| bytes.copy_within(64..80, 80)));
    add("a future version", change("index", |bytes| bytes[8] = 2));
    add("chunks swapped", change("data", |bytes| bytes[..2 << 20].rotate_left(1 << 20)));
    add("a page of zeros", change("data", |bytes| bytes[8192..12288].fill(0)));
    add("moved by a page", change("data", |bytes| bytes.rotate_left(4096)));
    add("identity, empty", change("identity", Vec::clear));
    add("identity, other text", change("identity", |bytes| bytes.fill(b'x')));
    add("identity, missing", Box::new(|folder| fs::remove_file(folder.join("identity")).unwrap()));
    add("all missing", Box::new(|folder| fs::remove_dir_all(folder).unwrap()));
    add(
        "locations of garbage",
        Box::new(|folder| {
            let locations = folder.parent().unwrap().join("locations");
            for entry in fs::read_dir(locations).unwrap() {
                fs::write(entry.unwrap().path(), b"{\"identity\":7").unwrap();
            }
        }),
    );
    all
}

pub(crate) fn kill_fetcher(client: &FetchClient) {
    let connection = client.connection().unwrap();
    let peer = rustix::net::sockopt::socket_peercred(&*connection).unwrap();
    rustix::process::kill_process(peer.pid, rustix::process::Signal::KILL).unwrap();
}

/// With a fetcher that has the object open, if `is_open`, and with a new one otherwise.
fn damaged_while(is_open: bool) {
    let world = World::new();
    let all = damages();
    assert!(all.len() >= 40, "{} kinds of damage", all.len());
    for (name, damage) in all {
        let server = Server::start(body(LENGTH));
        let client = world.client();
        let source = world.open(&server.url());
        check(&source, 0, 5 << 20);
        let cache = CacheDirectory::open(&world.cache()).unwrap();
        let listed = cache.list().unwrap();
        let entry = listed.iter().find(|entry| entry.name.contains(&server.url())).unwrap();
        let key = ferrofs_remote::ContentDigest::from_bytes(entry.key).hex();
        if is_open {
            damage(&world.cache().join("v1").join(key));
            // A reader compares each chunk once; the next one, as if in another process, again.
            drop(source);
        } else {
            drop(source);
            kill_fetcher(&client);
            damage(&world.cache().join("v1").join(key));
        }
        drop(client);
        let again = world.try_open(&server.url(), &Default::default());
        let again = again.unwrap_or_else(|error| panic!("{name}: {error}"));
        check(&again, 0, 5 << 20);
    }
}

#[test]
fn a_damaged_cache_is_repaired_by_a_new_fetcher() {
    damaged_while(false);
}

#[test]
fn a_cache_that_is_damaged_while_it_is_open_serves_no_wrong_byte() {
    damaged_while(true);
}
