//! Commands that see themselves as the user of their image.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;

use crate::support::{Place, USER, Way};
use nix::unistd::geteuid;
use sandbox::{Cause, ImageRoot, Run, Slot, User};

const ROOT: User = User { uid: 0, gid: 0 };
const DEVELOPER: User = User { uid: 1000, gid: 1001 };

/// What a script writes in an image; a device gives the command a sandbox of its own.
async fn said(
    place: &Place,
    slot: &mut Slot,
    image: ImageRoot,
    devices: &[PathBuf],
    argv: &[&str],
) -> String {
    let run = Run { image: Some(image), devices: devices.to_vec(), ..place.run(argv) };
    let ended = place.ended(slot, run).await;
    assert_eq!(ended.cause, Cause::Ended, "{ended:?}");
    place.stdout() + &place.stderr()
}

fn put(place: &Place, name: &str, owner: User, mode: u32) -> PathBuf {
    let path = place.layer().join("owned").join(name);
    fs::write(&path, name).unwrap();
    chown(&path, Some(owner.uid), Some(owner.gid)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

/// No device, and one that every sandbox has.
fn all_devices() -> [Vec<PathBuf>; 2] {
    [Vec::new(), vec!["/dev/null".into()]]
}

#[tokio::test]
async fn a_command_is_the_user_of_its_image_and_owns_its_files() {
    if !geteuid().is_root() {
        return; // Overlays need root.
    }
    let script = "echo $(id -u):$(id -g); cat /owned/own; cat /owned/other 2>/dev/null || echo refused; \
                  stat -c %u:%g /owned/own; echo made > made; stat -c %u made";
    for devices in all_devices() {
        for (user, other) in [(DEVELOPER, ROOT), (ROOT, DEVELOPER), (USER, ROOT)] {
            let place = Place::new(Way::Kept);
            let own = put(&place, "own", user, 0o600);
            put(&place, "other", other, 0o600);
            let mut slot = place.slot().await;
            let image = place.image(Some(user), None);
            let User { uid, gid } = user;
            let wanted = format!("{uid}:{gid}\nownrefused\n{uid}:{gid}\n{uid}\n");
            let said = said(&place, &mut slot, image, &devices, &["/bin/sh", "-c", script]).await;
            assert_eq!(said, wanted, "{user:?} {devices:?}");
            // Outside it is the user of actions, and the image is unchanged.
            assert_eq!(fs::metadata(place.root().join("made")).unwrap().uid(), USER.uid);
            assert_eq!(fs::metadata(own).unwrap().uid(), uid);
        }
    }
}

#[tokio::test]
async fn a_slot_serves_images_of_different_users_one_after_the_other() {
    if !geteuid().is_root() {
        return; // Overlays need root.
    }
    let place = Place::new(Way::Kept);
    put(&place, "own", DEVELOPER, 0o600);
    let mut slot = place.slot().await;
    let script = "id -u; cat /owned/own 2>/dev/null || echo refused; ls /tmp; touch /tmp/left; rm -f f; touch f; stat -c %u f";
    for (user, wanted) in [
        (Some(DEVELOPER), "1000\nown1000\n"),
        (Some(ROOT), "0\nrefused\n0\n"),
        (None, "65534\nrefused\n65534\n"),
        (Some(DEVELOPER), "1000\nown1000\n"),
        (Some(DEVELOPER), "1000\nown1000\n"),
    ] {
        let image = place.image(user, None);
        assert_eq!(said(&place, &mut slot, image, &[], &["/bin/sh", "-c", script]).await, wanted, "{user:?}");
    }
}

/// Tries what a user with rights could do, and prints what succeeded.
const ATTACKS: &str = r"
import ctypes, os, socket
library = ctypes.CDLL(None, use_errno=True)
OWN = os.getuid()
def call(number, *arguments):
    if library.syscall(ctypes.c_long(number), *arguments) == -1: raise OSError(ctypes.get_errno(), 'refused')
def write(path, text):
    with open(path, 'w') as file: file.write(text)
open('mine', 'w').close()
for name, attempt in {
    'chown to another': lambda: os.chown('mine', 5, 5),
    'chown of a system file': lambda: os.chown('/usr/bin/env', OWN, os.getgid()),
    'chmod of a system file': lambda: os.chmod('/usr/bin/env', 0o777),
    'write to a layer': lambda: write('/owned/own', 'changed'),
    'remove from a layer': lambda: os.remove('/owned/own'),
    'device': lambda: os.mknod('device', 0o60666, os.makedev(8, 0)),
    'character device': lambda: os.mknod('memory', 0o20666, os.makedev(1, 1)),
    'mount': lambda: call(165, b'x', b'/tmp', b'tmpfs', 0, None),
    'unmount': lambda: call(166, b'/tmp', 2),
    'namespaces': lambda: call(272, 0x10000000),
    'mount namespace': lambda: call(272, 0x20000),
    'network namespace': lambda: call(272, 0x40000000),
    'namespace of the first process': lambda: call(308, os.open('/proc/1/ns/user', os.O_RDONLY), 0),
    'root of the first process': lambda: os.listdir('/proc/1/root'),
    'memory of the first process': lambda: os.open('/proc/1/mem', os.O_RDWR),
    'maps of ids': lambda: write('/proc/self/uid_map', '0 0 4294967295'),
    'maps of the first process': lambda: write('/proc/1/uid_map', '0 0 4294967295'),
    'another user': lambda: os.setuid(5),
    'the outer user': lambda: os.setresuid(65534 if OWN != 65534 else 0, -1, -1),
    'groups': lambda: os.setgroups([0]),
    'host name': lambda: socket.sethostname('x'),
    'raw socket': lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
    'low port': lambda: socket.socket().bind(('127.0.0.1', 80)),
    'clock': lambda: call(227, 0, None),
    'chroot': lambda: os.chroot('/tmp'),
    'priority': lambda: os.nice(-5),
    'core pattern': lambda: write('/proc/sys/kernel/core_pattern', '|/x'),
    'own network settings': lambda: write('/proc/sys/net/ipv4/ip_unprivileged_port_start', '0'),
    'files of the machine': lambda: open('SECRET').read(),
    'password hashes': lambda: open('/owned/shadow').read(),
    'attribute of an overlay': lambda: os.setxattr('mine', 'trusted.overlay.opaque', b'y'),
    'capability of a file': lambda: os.setxattr('mine', 'security.capability', b'\x01\x00\x00\x02' + bytes(16)),
}.items():
    # In a sandbox of its own, the first process is one of the command.
    if not KEPT and name in ('root of the first process', 'memory of the first process'): continue
    try: attempt(); print('succeeded:', name, flush=True)
    except OSError: pass
for line in open('/proc/self/status'):
    if line.startswith(('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')): assert int(line.split()[1], 16) == 0, line
    if line.startswith('NoNewPrivs'): assert line.split()[1] == '1', line
    if line.startswith('Seccomp:'): assert line.split()[1] == '2', line
assert [line.split()[0::2] for line in open('/proc/self/uid_map')] == [[str(OWN), '1']]
print('end')
";

#[tokio::test]
async fn s19_the_user_of_an_image_has_no_right_over_the_machine_its_layers_or_its_namespaces() {
    if !geteuid().is_root() {
        return; // Overlays need root.
    }
    for devices in all_devices() {
        for user in [ROOT, DEVELOPER] {
            let place = Place::new(Way::Kept);
            let secret = place.path("secret");
            fs::write(&secret, "of the executor").unwrap();
            fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
            let own = put(&place, "own", user, 0o644);
            let other = if user == ROOT { DEVELOPER } else { ROOT };
            put(&place, "shadow", other, 0o600);
            let mut slot = place.slot().await;
            let kept = if devices.is_empty() { "True" } else { "False" };
            let attacks = ATTACKS.replace("SECRET", secret.to_str().unwrap()).replace("KEPT", kept);
            let image = place.image(Some(user), None);
            let said = said(&place, &mut slot, image, &devices, &["python3", "-c", &attacks]).await;
            assert_eq!(said, "end\n", "{user:?} {devices:?}");
            assert_eq!(fs::read_to_string(own).unwrap(), "own");
        }
    }
}

#[tokio::test]
async fn what_the_user_of_an_image_writes_into_a_writable_root_changes_no_layer() {
    if !geteuid().is_root() {
        return; // Overlays need root.
    }
    let script = "cat /owned/own /owned/other 2>/dev/null; echo changed > /owned/own && rm -f /owned/other && \
                  mkdir /new && echo $(stat -c %u /new /owned /owned/own) && ls /owned";
    for devices in all_devices() {
        for user in [DEVELOPER, ROOT] {
            let place = Place::new(Way::Kept);
            let (own, other) = (put(&place, "own", user, 0o600), put(&place, "other", USER, 0o644));
            let mut slot = place.slot().await;
            let image = || place.image(Some(user), Some(1 << 20));
            for _ in 0..2 {
                let said = said(&place, &mut slot, image(), &devices, &["/bin/sh", "-c", script]).await;
                let id = user.uid;
                assert_eq!(said, format!("ownother{id} {id} {id}\nown\n"), "{devices:?}");
            }
            assert_eq!(
                (fs::read_to_string(&own).unwrap(), fs::metadata(&own).unwrap().uid()),
                ("own".into(), user.uid)
            );
            assert_eq!(fs::read_to_string(&other).unwrap(), "other");
            assert!(!place.layer().join("new").exists() && other.exists());
        }
    }
}
