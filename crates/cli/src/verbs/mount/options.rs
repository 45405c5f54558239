//! The words of `-o`: what each one means for a mount, and which words look like one that nobody knows. It changes a
//! request and looks at nothing else. Called by `request`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use ferrofs_mount::fuse::attach::{Rejected, Understood};

use super::request::Request;
use crate::amount::{parse_bytes, parse_cpus, parse_jobs};
use crate::arguments::{Called, Caller};
use crate::name::escaped;

/// Every word that has a meaning of its own here, for those who mistype one.
const WORDS: [&str; 48] = [
    "ro",
    "rw",
    "allow_other",
    "auto_unmount",
    "noauto_unmount",
    "default_permissions",
    "exec",
    "noexec",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "fsname",
    "subtype",
    "max_read",
    "offset",
    "device",
    "no_checksum",
    "memory",
    "reserved_pages",
    "prefault",
    "jobs",
    "cpus",
    "nice",
    "timeout",
    "log",
    "user_xattr",
    "nouser_xattr",
    "acl",
    "noacl",
    "atime",
    "noatime",
    "relatime",
    "strictatime",
    "diratime",
    "nodiratime",
    "nofail",
    "_netdev",
    "user",
    "users",
    "noauto",
    "auto",
    "nouser",
    "kernel_cache",
    "async_read",
    "clone_fd",
    "max_threads",
    "nonempty",
];

/// How many letters may be wrong in a word that is suggested.
const WRONG_LETTERS_MAX: usize = 2;

/// What libfuse has options for and is always so here: pages stay cached, reads are not kept in order, threads have
/// channels of their own, reads are large.
const ALWAYS_SO: [&[u8]; 4] = [b"kernel_cache", b"async_read", b"clone_fd", b"big_writes"];

/// Why a word was not taken.
#[derive(Debug)]
pub(super) enum Refused {
    /// Nobody knows it.
    Unknown { word: OsString, near: Vec<&'static str> },
    /// It asks for what cannot be.
    Impossible { word: OsString, why: &'static str },
    /// Its value is not what it should be.
    Value { word: OsString, why: String },
    /// The mount says no.
    Mount(Rejected),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |word: &OsStr| escaped(word.as_bytes());
        match self {
            Self::Unknown { word, near } => {
                write!(f, "-o {}: there is no such option", shown(word))?;
                match near.as_slice() {
                    [] => f.write_str("; `ferrofs mount --help` lists them"),
                    near => write!(f, "; did you mean {}?", near.join(" or ")),
                }
            }
            Self::Impossible { word, why } => write!(f, "-o {}: {why}", shown(word)),
            Self::Value { word, why } => write!(f, "-o {}: {why}", shown(word)),
            Self::Mount(rejected) => write!(f, "{rejected}"),
        }
    }
}

impl From<Rejected> for Refused {
    fn from(rejected: Rejected) -> Self {
        Self::Mount(rejected)
    }
}

/// Takes all words of a list.
pub(super) fn take_list(
    request: &mut Request,
    list: &OsStr,
    called: Called,
) -> Result<(), Refused> {
    for word in words(list) {
        take(request, &word, called)?;
    }
    Ok(())
}

/// The words between the commas of a list. A backslash takes the next byte as it is; nothing between two commas is
/// nothing, as mount(8) leaves lists like that.
fn words(list: &OsStr) -> Vec<OsString> {
    let mut words = vec![Vec::new()];
    let mut bytes = list.as_bytes().iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b',' => words.push(Vec::new()),
            b'\\' => words.last_mut().into_iter().for_each(|word| word.extend(bytes.next())),
            byte => words.last_mut().into_iter().for_each(|word| word.push(byte)),
        }
    }
    words.into_iter().filter(|word| !word.is_empty()).map(OsString::from_vec).collect()
}

fn take(request: &mut Request, word: &OsStr, called: Called) -> Result<(), Refused> {
    let bytes = word.as_bytes();
    let taken = match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) => take_value(request, word, &bytes[..at], OsStr::from_bytes(&bytes[at + 1..]))?,
        None => take_plain(request, word, called)?,
    };
    if taken == Understood::Taken
        || request.attach.take(word)? == Understood::Taken
        || called.is_sloppy
    {
        return Ok(());
    }
    Err(Refused::Unknown { word: word.to_owned(), near: near(bytes) })
}

fn take_plain(request: &mut Request, word: &OsStr, called: Called) -> Result<Understood, Refused> {
    match word.as_bytes() {
        b"rw" if called.by == Caller::Verb => {
            let why = "nothing can be written to an EROFS image; leave it out";
            return Err(Refused::Impossible { word: word.to_owned(), why });
        }
        b"noauto_unmount" => request.attach.auto_unmount = false,
        b"no_checksum" => request.read.no_checksum = true,
        b"prefault" => request.reserve.prefault = true,
        b"user_xattr" => request.settings.has_user_xattrs = true,
        b"nouser_xattr" => request.settings.has_user_xattrs = false,
        b"acl" => request.settings.has_acls = true,
        b"noacl" => request.settings.has_acls = false,
        name if ALWAYS_SO.contains(&name) => {}
        _ => return Ok(Understood::NotMine),
    }
    Ok(Understood::Taken)
}

fn take_value(
    request: &mut Request,
    word: &OsStr,
    name: &[u8],
    value: &OsStr,
) -> Result<Understood, Refused> {
    let refused = |why: String| Refused::Value { word: word.to_owned(), why };
    let text = || value.to_str().ok_or_else(|| refused("the value is no text".to_owned()));
    match name {
        b"uid" | b"gid" | b"umask" => {
            let why = "owners and modes are those of the image, and the kernel judges by them";
            return Err(Refused::Impossible { word: word.to_owned(), why });
        }
        b"offset" | b"fsoffset" => {
            request.read.offset = parse_bytes(text()?).map_err(refused)?;
        }
        b"device" if value.is_empty() => return Err(refused("a file is missing".to_owned())),
        b"device" => request.read.devices.push(PathBuf::from(value)),
        b"memory" => request.machine.memory = Some(parse_bytes(text()?).map_err(refused)?),
        b"reserved_pages" => {
            let pages = text()?.parse().map_err(|_| refused("not a number of pages".to_owned()))?;
            request.reserve.reserved_pages = Some(pages);
        }
        b"jobs" | b"max_threads" => {
            request.machine.jobs = Some(parse_jobs(text()?).map_err(refused)?);
        }
        // Commas part the words, so that ranges are all that fits; a backslash before each comma helps.
        b"cpus" => request.machine.cpus = Some(parse_cpus(text()?).map_err(refused)?),
        b"nice" => {
            let nice = text()?.parse().ok().filter(|nice| (-20..=19).contains(nice));
            let nice = nice.ok_or_else(|| refused("not a number from -20 to 19".to_owned()))?;
            request.machine.nice = Some(nice);
        }
        b"timeout" => {
            let seconds = text()?.parse();
            let seconds = seconds.map_err(|_| refused("not a number of seconds".to_owned()))?;
            request.settings.time_limit = time_limit(seconds);
        }
        b"log" if value.is_empty() => return Err(refused("a file is missing".to_owned())),
        b"log" => request.log = Some(value.into()),
        _ => return Ok(Understood::NotMine),
    }
    Ok(Understood::Taken)
}

/// What a number of seconds means: 0 waits for ever.
pub(super) fn time_limit(seconds: u64) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

/// Words that somebody may have meant who wrote this one; the nearest ones only.
fn near(word: &[u8]) -> Vec<&'static str> {
    let name = word.split(|byte| *byte == b'=').next().unwrap_or_default();
    let spelled: Vec<_> =
        WORDS.iter().map(|known| (distance(name, known.as_bytes()), *known)).collect();
    // In a short word, few letters are left if two are wrong.
    let most = WRONG_LETTERS_MAX.min(name.len() / 2);
    let least = spelled.iter().map(|(wrong, _)| *wrong).min().unwrap_or(0);
    let is_near = |wrong: usize| wrong == least && wrong <= most;
    spelled.into_iter().filter(|(wrong, _)| is_near(*wrong)).map(|(_, known)| known).collect()
}

/// How many letters have to be put in, left out or replaced to make one word of the other.
fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, left) in one.iter().enumerate() {
        let mut diagonal = at;
        let mut before = at + 1;
        for (right, above) in other.iter().zip(row.iter_mut().skip(1)) {
            let replaced = diagonal + usize::from(left != right);
            diagonal = *above;
            before = replaced.min(before + 1).min(*above + 1);
            *above = before;
        }
        if let Some(first) = row.first_mut() {
            *first = at + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::MountArguments;

    const TYPED: Called = Called { by: Caller::Verb, is_sloppy: false, is_rehearsal: false };
    const BY_MOUNT: Called = Called { by: Caller::MountProgram, ..TYPED };

    fn taken(list: impl AsRef<OsStr>, called: Called) -> Result<Request, String> {
        let mut request = Request::of(&MountArguments::new("image".into(), "dir".into())).unwrap();
        match take_list(&mut request, list.as_ref(), called) {
            Ok(()) => Ok(request),
            Err(refused) => Err(refused.to_string()),
        }
    }

    #[test]
    fn each_word_changes_what_it_names() {
        let request = taken(
            "ro,offset=64k,device=a,device=b,memory=64m,jobs=2,nice=-5,timeout=0,log=x,noacl,nouser_xattr,\
             no_checksum,noauto_unmount,fsname=n,max_read=65536,noexec,allow_other",
            TYPED,
        );
        let request = request.unwrap();
        assert_eq!((request.read.offset, request.read.no_checksum), (65536, true));
        assert_eq!(request.read.devices, [PathBuf::from("a"), PathBuf::from("b")]);
        let machine = &request.machine;
        assert_eq!(
            (machine.memory, machine.jobs, machine.nice),
            (Some(64 << 20), Some(2), Some(-5))
        );
        assert_eq!(request.settings.time_limit, None);
        assert!(!request.settings.has_acls && !request.settings.has_user_xattrs);
        assert_eq!(request.log.as_deref(), Some("x".as_ref()));
        assert!(!request.attach.auto_unmount && !request.attach.exec);
        assert_eq!((request.attach.source, request.attach.max_read), ("n".into(), Some(65536)));
    }

    #[test]
    fn the_last_of_several_values_counts() {
        let request = taken("timeout=3,offset=1,timeout=5,offset=2,noacl,acl", TYPED).unwrap();
        assert_eq!(request.settings.time_limit, Some(Duration::from_secs(5)));
        assert_eq!((request.read.offset, request.settings.has_acls), (2, true));
    }

    #[test]
    fn words_of_fstab_and_of_libfuse_that_are_so_anyway_pass() {
        for word in [
            "nofail",
            "_netdev",
            "user",
            "users",
            "noauto",
            "x-systemd.automount",
            "x-y=1",
            "noatime",
            "atime",
            "defaults",
            "kernel_cache",
            "clone_fd",
            "async_read",
            "nonempty",
            "default_permissions",
        ] {
            taken(word, TYPED).unwrap();
        }
        assert_eq!(taken("max_threads=3", TYPED).unwrap().machine.jobs, Some(3));
    }

    #[test]
    fn writing_is_refused_unless_mount_says_so_by_itself() {
        assert!(taken("rw", TYPED).unwrap_err().starts_with("-o rw: nothing can be written"));
        taken("rw,dev,suid", BY_MOUNT).unwrap();
        taken("rw", Called { by: Caller::Erofsfuse, ..TYPED }).unwrap();
    }

    #[test]
    fn an_unknown_word_is_an_error_that_names_near_ones() {
        let refused = taken("ro,alow_other", TYPED).unwrap_err();
        assert_eq!(refused, "-o alow_other: there is no such option; did you mean allow_other?");
        assert!(taken("offsett=3", TYPED).unwrap_err().contains("did you mean offset?"));
        assert!(taken("frobnicate", TYPED).unwrap_err().contains("lists them"));
        assert!(taken("ro=1", TYPED).is_err() && taken("offset", TYPED).is_err());
        taken("frobnicate,frob=0", Called { is_sloppy: true, ..TYPED }).unwrap();
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        for word in [
            "offset=x",
            "memory=",
            "jobs=0",
            "cpus=a",
            "nice=20",
            "timeout=-1",
            "device=",
            "log=",
            "max_read=x",
            "allow_root",
            "subtype=a/b",
            "uid=0",
        ] {
            let refused = taken(word, TYPED).unwrap_err();
            assert!(refused.contains(word), "{refused}");
        }
    }

    #[test]
    fn backslashes_keep_commas_together() {
        let split = |list: &str| words(list.as_ref());
        assert_eq!(split(r"fsname=a\,b,ro"), ["fsname=a,b", "ro"]);
        assert_eq!(split(r"a\\,b"), [r"a\", "b"]);
        assert_eq!(split(",a,,"), ["a"]);
        assert_eq!(split(r"a\"), ["a"]);
        assert_eq!(taken(r"fsname=a\,b,cpus=0\,1", TYPED).unwrap().attach.source, "a,b");
        let bytes = OsString::from_vec(b"device=\xff\xfe".to_vec());
        assert_eq!(
            taken(bytes, TYPED).unwrap().read.devices[0].as_os_str().as_bytes(),
            b"\xff\xfe"
        );
    }

    #[test]
    fn every_word_that_is_suggested_is_understood() {
        for word in WORDS {
            let values = ["", "=1", "=a", "=0-1"].map(|value| format!("{word}{value}"));
            assert!(values.iter().any(|word| taken(word, BY_MOUNT).is_ok()), "{word}");
        }
    }

    #[test]
    fn distances_count_letters() {
        for (one, other, wrong) in [
            ("", "", 0),
            ("", "ab", 2),
            ("ab", "", 2),
            ("abc", "abc", 0),
            ("abc", "axc", 1),
            ("abc", "bc", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(one.as_bytes(), other.as_bytes()), wrong, "{one} {other}");
        }
    }
}
