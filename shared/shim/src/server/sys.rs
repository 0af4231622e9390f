//! The calls without a safe wrapper: wait4, the disposition of SIGCHLD, `close_range`,
//! descriptors by number, capabilities, memory policies, the state of a network interface, mounts with other owners.
#![expect(unsafe_code, reason = "these calls have no safe wrapper that serves here")]

use std::ffi::CStr;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::ExitStatus;
use std::time::Duration;

use invariant::Present as _;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::socket::{AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, socket};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use super::traced;
use crate::model::Switches;
use crate::options::User;

/// The version 3 of the calls about capabilities.
const CAPABILITIES_VERSION: u32 = 0x2008_0522;

/// A child that ended and was reaped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reaped {
    pub(crate) pid: u32,
    pub(crate) status: ExitStatus,
    /// User and system time, its own and that of the children it waited for.
    pub(crate) cpu: Duration,
    /// Its largest resident set, or that of a child it waited for, in bytes.
    pub(crate) peak_memory_bytes: u64,
    /// Its own context switches, and those of the children it waited for.
    pub(crate) switches: Switches,
}

/// The result of a wait.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Waited {
    Reaped(Reaped),
    /// A traced thread stopped or ended: its use is not that of a command.
    Traced,
    /// There are children, and all are alive.
    NoneEnded,
    NoChildren,
}

/// Reaps one ended child; waits for one to end if `block`.
pub(crate) fn wait_any(block: bool) -> io::Result<Waited> {
    let flags = if block { 0 } else { libc::WNOHANG };
    loop {
        let mut status = 0;
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: both pointers are to live, writable memory of the right type; all-zero is a valid rusage.
        let (pid, usage) = unsafe {
            let pid = libc::wait4(-1, &raw mut status, flags, usage.as_mut_ptr());
            (pid, usage.assume_init())
        };
        match u32::try_from(pid) {
            Ok(0) => return Ok(Waited::NoneEnded),
            Ok(pid) if libc::WIFSTOPPED(status) || traced::take(pid) => return Ok(Waited::Traced),
            Ok(pid) => {
                return Ok(Waited::Reaped(Reaped {
                    pid,
                    status: ExitStatus::from_raw(status),
                    cpu: duration(usage.ru_utime) + duration(usage.ru_stime),
                    peak_memory_bytes: u64::try_from(usage.ru_maxrss).present("a resident set is negative")
                        * 1024,
                    switches: Switches {
                        voluntary: count(usage.ru_nvcsw),
                        involuntary: count(usage.ru_nivcsw),
                    },
                }));
            }
            Err(_) => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ECHILD) => return Ok(Waited::NoChildren),
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

/// Undoes an inherited "ignore" of SIGCHLD, under which children would vanish unreaped.
pub(crate) fn default_child_signal() -> io::Result<()> {
    // SAFETY: the default disposition runs none of this program's code.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    Ok(())
}

/// Closes all descriptors except the three standard ones in programs executed from here on. (This process's own never
/// pass; a worker's caller may have leaked some, and a command could hold them open forever.)
pub(crate) fn pass_no_descriptors() {
    let (first, last) = (3_u32, u32::MAX);
    // SAFETY: it only marks descriptors; none is closed under its owner. Older kernels (before 5.11) refuse.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_CLOEXEC) };
}

/// Passes this descriptor to the next program that is executed.
pub(crate) fn pass_descriptor(file: BorrowedFd<'_>) -> io::Result<()> {
    fcntl(file, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(())
}

/// A file that spawned programs find at a fixed descriptor number, as long as this value exists.
#[derive(Debug)]
pub(crate) struct Passed {
    _there: OwnedFd,
}

impl Passed {
    /// The file at this number, which must be larger than any that this process uses.
    pub(crate) fn at(file: OwnedFd, number: RawFd) -> io::Result<Self> {
        // SAFETY: this process uses no descriptor at this number; the new one is owned by the returned value.
        let there = unsafe {
            checked(libc::dup2(file.as_raw_fd(), number).into())?;
            OwnedFd::from_raw_fd(number)
        };
        drop(file);
        Ok(Self { _there: there })
    }
}

/// Reads from the socket, as [`std::io::Read::read`] does, and the files that come with the bytes.
pub(crate) fn receive(socket: &UnixStream, buffer: &mut [u8], files: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = nix::cmsg_space!([RawFd; 8]);
    let mut buffers = [IoSliceMut::new(buffer)];
    let message =
        recvmsg::<()>(socket.as_raw_fd(), &mut buffers, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = part {
            // SAFETY: the kernel has just created these descriptors, for this process alone.
            files.extend(numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
        }
    }
    Ok(message.bytes)
}

/// A limit that the kernel enforces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResourceLimit {
    pub(crate) resource: Resource,
    /// The process may raise it to `hard`.
    pub(crate) soft: u64,
    pub(crate) hard: u64,
}

impl ResourceLimit {
    /// A limit that cannot be raised.
    pub(crate) fn of(resource: Resource, limit: u64) -> Self {
        Self { resource, soft: limit, hard: limit }
    }
}

/// Makes the program of `command` start with these limits, or with stricter ones that already apply.
pub(crate) fn confine(command: &mut std::process::Command, limits: [Option<ResourceLimit>; 3]) {
    let limits = limits.map(|limit| {
        let limit = limit?;
        // Fails only for a resource that the kernel does not know, which it cannot limit either.
        let (_, most) = getrlimit(limit.resource).ok()?;
        Some(ResourceLimit { soft: limit.soft.min(most), hard: limit.hard.min(most), ..limit })
    });
    let set = move || {
        for ResourceLimit { resource, soft, hard } in limits.into_iter().flatten() {
            setrlimit(resource, soft, hard)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes plain calls only, which allocate nothing and take no lock.
    unsafe { command.pre_exec(set) };
}

/// Switches to that user permanently, without any right of root and without a way back.
pub(crate) fn become_user(user: User) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    if uid.is_root() {
        return Err(io::Error::other("the shim's user must not be root"));
    }
    setgroups(&[])?;
    setresgid(gid, gid, gid)?;
    // This also drops all capabilities.
    setresuid(uid, uid, uid)?;
    // Set-user-ID programs would give a command rights that the shim does not have, so the shim could not kill it.
    prctl::set_no_new_privs()?;
    // The commands run as the same user: they must not inspect or trace the shim.
    prctl::set_dumpable(false)?;
    Ok(())
}

/// Keeps the right to mount across the next exec of a user other than root, which would drop it. It is the right of a
/// user namespace's creator, over that namespace only.
pub(crate) fn keep_mount_right() -> io::Result<()> {
    const SYS_ADMIN: u32 = 21;
    let ours = [CAPABILITIES_VERSION, 0];
    // Effective, permitted, inheritable; twice, for 64 bits.
    let mut sets = [0_u32; 6];
    // SAFETY: version 3 reads and writes exactly these two words and six words.
    checked(unsafe { libc::syscall(libc::SYS_capget, ours.as_ptr(), sets.as_mut_ptr()) })?;
    sets[2] |= 1 << SYS_ADMIN;
    // SAFETY: as above; the kernel only reads.
    checked(unsafe { libc::syscall(libc::SYS_capset, ours.as_ptr(), sets.as_ptr()) })?;
    // SAFETY: the call has only numbers as arguments.
    checked(unsafe {
        libc::syscall(libc::SYS_prctl, libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, SYS_ADMIN, 0, 0)
    })
}

/// Gives up all capabilities, also those that programs of the user 0 would get in the user namespace of this process.
pub(crate) fn drop_rights() -> io::Result<()> {
    const CAPABILITIES_MAX: libc::c_ulong = 64;
    for capability in 0..CAPABILITIES_MAX {
        // SAFETY: the call has only numbers as arguments.
        let dropped = checked(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) }.into());
        match dropped {
            // The kernel has no more of them.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            other => other?,
        }
    }
    let none = [CAPABILITIES_VERSION, 0];
    let sets = [0_u32; 6];
    // SAFETY: version 3 reads exactly these two words and six words.
    checked(unsafe { libc::syscall(libc::SYS_capset, none.as_ptr(), sets.as_ptr()) })?;
    prctl::set_no_new_privs()?;
    Ok(())
}

/// Mounts a folder read-only at `place`, with the owners of its files as the user namespace `maps` has them.
pub(crate) fn mount_mapped(folder: &CStr, place: &CStr, maps: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        set: u64,
        cleared: u64,
        propagation: u64,
        namespace: u64,
    }
    const READ_ONLY: u64 = 1;
    const MAPPED: u64 = 0x10_0000;
    let here = libc::AT_FDCWD;
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    // SAFETY: the kernel reads one text, which ends with a NUL byte.
    let tree = unsafe { libc::syscall(libc::SYS_open_tree, here, folder.as_ptr(), flags) };
    checked(tree)?;
    let tree = RawFd::try_from(tree).map_err(io::Error::other)?;
    // SAFETY: the kernel has just created this descriptor.
    let tree = unsafe { OwnedFd::from_raw_fd(tree) };
    let namespace = u64::try_from(maps.as_raw_fd()).map_err(io::Error::other)?;
    let attributes = Attributes { set: READ_ONLY | MAPPED, cleared: 0, propagation: 0, namespace };
    let (own, itself, size) = (tree.as_raw_fd(), c"".as_ptr(), size_of::<Attributes>());
    // SAFETY: the kernel reads an empty text and a struct of this size.
    checked(unsafe {
        let attributes = &raw const attributes;
        libc::syscall(libc::SYS_mount_setattr, own, itself, libc::AT_EMPTY_PATH, attributes, size)
    })?;
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH;
    // SAFETY: the kernel reads two texts, which end with a NUL byte.
    checked(unsafe { libc::syscall(libc::SYS_move_mount, own, itself, here, place.as_ptr(), flags) })
}

/// Undoes [`keep_mount_right`], so that commands start without it.
pub(crate) fn pass_no_rights() {
    // SAFETY: the call has only numbers as arguments. It fails only on kernels without ambient capabilities.
    unsafe { libc::syscall(libc::SYS_prctl, libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
}

/// Makes this process, and all that it starts, use memory of these NUMA nodes only.
pub(crate) fn bind_memory(nodes: &[u16]) -> io::Result<()> {
    // As many bits as Linux has nodes at most.
    let mut mask = [0_u64; 16];
    for node in nodes {
        let word = mask.get_mut(usize::from(*node / 64));
        *word.ok_or_else(|| io::Error::other(format!("there is no NUMA node {node}")))? |= 1 << (node % 64);
    }
    // The kernel counts one bit less than it is given.
    let bits = size_of_val(&mask) * 8 + 1;
    // SAFETY: the kernel only reads, and as many bits as the mask has.
    checked(unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_BIND, mask.as_ptr(), bits) })
}

/// Starts the loopback interface of this process's network namespace.
pub(crate) fn start_loopback() -> io::Result<()> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    let flags = libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING);
    request.ifr_ifru.ifru_flags = flags.present("the flags of an interface have 16 bits");
    // SAFETY: the kernel reads exactly one ifreq.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) }.into())
}

fn checked(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn count(number: libc::c_long) -> u64 {
    u64::try_from(number).present("a number of context switches is negative")
}

fn duration(time: libc::timeval) -> Duration {
    let negative = "a processor time is negative";
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).present(negative));
    seconds + Duration::from_micros(u64::try_from(time.tv_usec).present(negative))
}
