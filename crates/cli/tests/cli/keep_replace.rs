//! A kept mount is taken over by another program, or given a server again (docs/survival.md, protocol R), while programs
//! read. The scene and the load are those of `keep`.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::keep::{
    Kept, LIMIT, Scene, deny_descriptors, has_ordinary_mounts, has_resend, holder_of, is_mounted,
    leave_without_server, wait_for_end_of,
};
use crate::mounted::has_fuse;
use crate::support::{TestCommand, ferrofs};

/// The holder of a mount once the former one has ended by itself.
fn next_holder(scene: &Scene, previous: Pid) -> Pid {
    wait_for_end_of(previous, || scene.log());
    holder_of(&scene.point)
}

fn taken_from(scene: &Scene, previous: Pid) -> Kept {
    Kept { holder: next_holder(scene, previous), point: scene.point.clone() }
}

fn replace(scene: &Scene) -> TestCommand {
    let command = if scene.is_ordinary { scene.dir.ordinary_ferrofs() } else { ferrofs() };
    command.args(["mount", "--replace"]).arg(&scene.point)
}

#[test]
fn a_mount_is_taken_over_again_and_again_and_no_call_fails() {
    if !has_fuse() || !has_resend() {
        return;
    }
    for is_ordinary in [false, true] {
        if is_ordinary && !has_ordinary_mounts() {
            continue;
        }
        let scene = Scene::new(is_ordinary);
        let first = scene.mount(&[]);
        let load = scene.load();
        let mut holder = first.holder;
        for _ in 0..5 {
            replace(&scene).succeeds();
            holder = next_holder(&scene, holder);
        }
        let kept = Kept { holder, point: scene.point.clone() };
        // It survives its server as before.
        kept.kill_servers(3);
        load.stop_without_failure(&scene.log());
        assert_eq!(kept.restarts(&scene), 8, "{}", scene.log());
        drop(kept);
        assert!(!is_mounted(&scene.point));
    }
}

// A-REPLACE-STEPS
#[test]
fn a_new_program_that_dies_at_any_step_costs_no_call() {
    if !has_fuse() || !has_resend() {
        return;
    }
    // The first server of the new program has the number 2.
    for point in [
        "start",
        "opened",
        "prepared",
        "go",
        "handed",
        "turn",
        "examined",
        "forgotten",
        "resent",
        "ready",
    ] {
        let scene = Scene::new(false);
        let kept = scene.mount(&[]);
        let load = scene.load();
        replace(&scene).env("FERROFS_FAULT", format!("{point}:2")).ends_with(1);
        assert_eq!(holder_of(&scene.point), kept.holder, "{point}");
        // The former program goes on, and can be replaced.
        kept.kill_servers(1);
        // An answer of the next server: a replacement in between is refused.
        assert!(kept.restarts(&scene) >= 1, "{point}");
        replace(&scene).succeeds();
        load.stop_without_failure(&format!("{point}: {}", scene.log()));
        drop(taken_from(&scene, kept.holder));
    }
}

#[test]
fn a_former_holder_that_dies_after_its_server_leaves_the_mount_to_the_new_one() {
    if !has_fuse() || !has_resend() {
        return;
    }
    let scene = Scene::new(false);
    let kept = scene.mount(&[("FERROFS_FAULT", "released:1")]);
    let load = scene.load();
    replace(&scene).succeeds();
    let now = taken_from(&scene, kept.holder);
    assert_ne!(now.holder, kept.holder);
    now.kill_servers(2);
    load.stop_without_failure(&scene.log());
}

#[test]
fn a_former_holder_that_dies_before_it_hands_over_leaves_the_mount_to_the_new_one() {
    if !has_fuse() || !has_resend() {
        return;
    }
    for is_ordinary in [false, true] {
        if is_ordinary && !has_ordinary_mounts() {
            continue;
        }
        for point in ["killed", "retired"] {
            let scene = Scene::new(is_ordinary);
            let kept = scene.mount(&[("FERROFS_FAULT", &format!("{point}:1"))]);
            let load = scene.load();
            replace(&scene).succeeds();
            let now = taken_from(&scene, kept.holder);
            assert_ne!(now.holder, kept.holder, "{point}");
            now.kill_servers(2);
            load.stop_without_failure(&format!("{point}: {}", scene.log()));
        }
    }
}

/// The kernel gives the numbers of a mount that has ended to the next one, while processes of the first may still be there.
#[test]
fn a_holder_whose_mount_has_ended_is_not_taken_for_that_of_the_next_mount() {
    if !has_fuse() || !has_resend() {
        return;
    }
    let (ended, scene) = (Scene::new(false), Scene::new(false));
    let previous = ended.mount(&[]);
    let server = previous.server(None);
    kill_process(server, Signal::STOP).unwrap();
    // Its processes stay, since the server cannot see that the mount is gone.
    unmount(&ended.point, UnmountFlags::DETACH).unwrap();
    let kept = scene.mount(&[]);
    // Which of two sockets is asked first depends on their names, which are random.
    for _ in 0..8 {
        replace(&scene).succeeds();
    }
    let now = taken_from(&scene, kept.holder);
    assert_ne!(now.holder, kept.holder);
    kill_process(server, Signal::CONT).unwrap();
    drop(previous);
}

/// The former holder dies before it has ended its server. The mount is served either way: by that server, or, if it ends,
/// by the new one.
#[test]
fn a_former_holder_that_dies_before_its_server_leaves_the_mount_with_one() {
    if !has_fuse() || !has_resend() {
        return;
    }
    for is_server_killed in [false, true] {
        let scene = Scene::new(false);
        let kept = scene.mount(&[("FERROFS_FAULT", "asked:1")]);
        let server = kept.server(None);
        let load = scene.load();
        std::thread::scope(|scope| {
            let replacing = scope.spawn(|| match is_server_killed {
                false => Some(replace(&scene).ends_with(1).stderr),
                true => {
                    replace(&scene).succeeds();
                    None
                }
            });
            wait_for_end_of(kept.holder, || scene.log());
            if is_server_killed {
                kill_process(server, Signal::KILL).unwrap();
            }
            let message = replacing.join().unwrap();
            assert!(message.is_none_or(|message| message.contains("continues without it")));
        });
        load.stop_without_failure(&scene.log());
        match is_server_killed {
            true => drop(taken_from(&scene, kept.holder)),
            false => kill_process(server, Signal::KILL).unwrap(),
        }
    }
}

#[test]
fn root_takes_over_the_mount_of_a_user_as_that_user() {
    if !has_fuse() || !has_resend() || !has_ordinary_mounts() {
        return;
    }
    let scene = Scene::new(true);
    let kept = scene.mount(&[]);
    ferrofs().args(["mount", "--replace"]).arg(&scene.point).succeeds();
    let now = taken_from(&scene, kept.holder);
    for process in [now.holder, now.server(None)] {
        let status = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero()));
        let status = status.unwrap();
        assert!(status.contains("\nUid:\t65534\t65534\t65534\t65534\n"), "{status}");
        assert!(status.contains("\nGid:\t65534\t65534\t65534\t65534\n"), "{status}");
    }
}

#[test]
fn what_cannot_be_taken_over_is_refused_with_a_remedy() {
    let scene = Scene::new(false);
    let refused = |expected: &str| {
        let message = replace(&scene).ends_with(1).stderr;
        assert!(message.contains(expected), "{message}");
        let message = ferrofs().args(["mount", "--replace", "x", "y"]).ends_with(2).stderr;
        assert!(message.contains("cannot be used with"), "{message}");
    };
    refused("not a mount of ferrofs");
    if !has_fuse() {
        return;
    }
    ferrofs().arg("mount").arg(&scene.image).arg(&scene.point).succeeds();
    refused("was not mounted with --keep");
    let message = ferrofs().args(["mount", "--reattach"]).arg(&scene.point).ends_with(1).stderr;
    assert!(message.contains("was not mounted with --keep"), "{message}");
    unmount(&scene.point, UnmountFlags::empty()).ok();
    while is_mounted(&scene.point) {
        std::process::Command::new("fusermount3").arg("-u").arg(&scene.point).status().ok();
    }
    // Another version says so, and the mount is as it was.
    let kept = scene.mount(&[("FERROFS_OTHER_VERSION", "1")]);
    let server = kept.server(None);
    refused("unmount it and mount it with this program");
    assert_eq!(kept.server(None), server);
}

#[test]
fn another_user_cannot_take_a_mount() {
    if !has_fuse() || !has_ordinary_mounts() {
        return;
    }
    let scene = Scene::new(false);
    let kept = scene.mount(&[]);
    let command = scene.dir.ordinary_ferrofs().args(["mount", "--replace"]).arg(&scene.point);
    let message = command.ends_with(1).stderr;
    assert!(message.contains("only user 0"), "{message}");
    assert_eq!(holder_of(&scene.point), kept.holder);
}

#[test]
fn a_holder_without_a_server_starts_one_at_once_when_it_is_asked_to() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new(false);
    let kept = scene.mount(&[]);
    let reattach = || ferrofs().args(["mount", "--reattach"]).arg(&scene.point).succeeds();
    assert!(reattach().stderr.contains("has a process that serves it"));
    let good = fs::read(&scene.image).unwrap();
    let rewrite = |bytes: &[u8]| {
        let mut file = fs::File::options().write(true).truncate(true).open(&scene.image).unwrap();
        file.write_all(bytes).unwrap();
    };
    rewrite(&[]);
    kill_process(kept.server(None), Signal::KILL).unwrap();
    // Pauses of 1, 2 and 4 seconds; the next one takes 8.
    let until = Instant::now() + LIMIT;
    while !scene.log().contains("(restart 5)") {
        assert!(Instant::now() < until, "{}", scene.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    rewrite(&good);
    let started_at = Instant::now();
    assert!(reattach().stderr.contains("is served again"));
    let read = fs::read(scene.point.join("file1")).unwrap();
    assert!(read == fs::read(scene.dir.join("tree/file1")).unwrap());
    assert!(started_at.elapsed() < Duration::from_secs(4), "{:?}", started_at.elapsed());
}

/// Any user may listen at a name like that of a holder. Those names are tried in the order of their bytes.
#[test]
fn a_socket_that_takes_no_connection_keeps_no_program_from_the_holder() {
    if !has_fuse() || !has_resend() {
        return;
    }
    let scene = Scene::new(false);
    let kept = scene.mount(&[]);
    let device = fs::metadata(&scene.point).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let name = format!("ferrofs/{major}:{minor}/0000000000000000");
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let socket = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    };
    let foreign = socket();
    bind(&foreign, &address).unwrap();
    listen(&foreign, 0).unwrap();
    let waiting = std::iter::repeat_with(socket);
    let waiting: Vec<_> = waiting.take_while(|socket| connect(socket, &address).is_ok()).collect();
    let reattached = ferrofs().args(["mount", "--reattach"]).arg(&scene.point).succeeds();
    assert!(reattached.stderr.contains("has a process that serves it"));
    replace(&scene).succeeds();
    assert_ne!(taken_from(&scene, kept.holder).holder, kept.holder);
    drop(waiting);
}

/// The former holder has no server that it could end first.
#[test]
fn a_mount_whose_holder_cannot_start_a_server_is_taken_over() {
    if !has_fuse() || !has_resend() {
        return;
    }
    let scene = Scene::new(false);
    let kept = scene.mount(&[]);
    leave_without_server(&scene, &kept);
    let until = Instant::now() + LIMIT;
    // It is refused if it takes longer than the pause between two forks, which doubles.
    while replace(&scene).run().code != Some(0) {
        assert!(Instant::now() < until, "{}", scene.log());
    }
    let now = taken_from(&scene, kept.holder);
    assert_ne!(now.holder, kept.holder);
    assert!(
        fs::read(scene.point.join("file1")).unwrap()
            == fs::read(scene.dir.join("tree/file1")).unwrap()
    );
}

/// Such a holder span, and the program waited.
#[test]
fn a_holder_that_may_open_nothing_more_refuses_programs() {
    if !has_fuse() || !has_resend() {
        return;
    }
    let scene = Scene::new(false);
    let kept = scene.mount(&[]);
    deny_descriptors(&scene, &kept);
    for _ in 0..3 {
        let refused = replace(&scene).ends_with(1);
        assert!(refused.stderr.contains("may open no more files"), "{}", refused.stderr);
    }
    fs::read(scene.point.join("file1")).unwrap();
}

/// A program that has connected and was stopped, such as one of a shell with job control.
#[test]
fn a_program_that_has_stopped_keeps_no_other_from_the_mount() {
    if !has_fuse() || !has_resend() {
        return;
    }
    let scene = Scene::new(false);
    let kept = scene.mount(&[]);
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let device = fs::metadata(&scene.point).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let place = format!("@ferrofs/{major}:{minor}/");
    let mut names = table.lines().filter_map(|line| line.rsplit(' ').next());
    let name = names.find_map(|name| name.starts_with(&place).then(|| &name[1..])).unwrap();
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let flags = SocketFlags::CLOEXEC;
    let stopped = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    connect(&stopped, &address).unwrap();
    let reattached = ferrofs().args(["mount", "--reattach"]).arg(&scene.point).succeeds();
    assert!(reattached.stderr.contains("has a process that serves it"));
    let mut answer = [0; 512];
    let length = rustix::io::read(&stopped, &mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
    assert!(answer.starts_with('F') && answer.contains("another program"), "{answer:?}");
    replace(&scene).succeeds();
    assert_ne!(taken_from(&scene, kept.holder).holder, kept.holder);
}
