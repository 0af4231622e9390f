//! The system calls that are refused to sandboxed commands: those that reach parts of the kernel which compilers,
//! tests and debuggers do not need, and from which most escapes from containers start.
//!
//! Two filters, because each has one answer: EPERM for most calls, and ENOSYS for `clone3`, whose flags no filter can
//! read; the C library then uses `clone`. Programs of other architectures are killed at their first call.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::OwnedFd;

use nix::sys::memfd::{MFdFlags, memfd_create};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare,
    SeccompCondition as Condition, SeccompFilter, SeccompRule as Rule, TargetArch, sock_filter,
};

/// The descriptors at which the wrapper of a command finds the filters, if [`crate::Options::filter`] is set.
pub const FILTER_DESCRIPTORS: [i32; 2] = [101, 102];

/// Calls that are refused with any arguments.
const REFUSED: &[i64] = &[
    // Mounts and namespaces.
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    OPEN_TREE_ATTR,
    // Programs and queues inside the kernel.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_userfaultfd,
    // Keys outlive the processes of a command.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // They reach processes outside, of which a socket gives a pidfd.
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_kcmp,
    // Files by number instead of by path.
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    // The machine itself.
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_reboot,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
];

/// Number of `open_tree_attr` (Linux 6.15) on all architectures.
const OPEN_TREE_ATTR: i64 = 467;

#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = &[
    libc::SYS_uselib,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_ustat,
    libc::SYS_sysfs,
    libc::SYS__sysctl,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];

/// Families of sockets that remain: unspecified, local, internet, and what network tools ask the kernel with.
const FAMILIES: [i32; 5] = [libc::AF_UNSPEC, libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
/// Values of `personality` that remain: of this and of 32-bit machines, with old version numbers, without random
/// addresses (debuggers), and the question.
const PERSONALITIES: [u64; 7] = [0, 0x8, 0x2_0000, 0x2_0008, 0x4_0000, 0x4_0008, 0xffff_ffff];
/// Requests of `ioctl` that write into the input of a terminal.
const TERMINAL_INPUT: [u64; 2] = [libc::TIOCSTI, 0x541c];

/// Numbers of calls from here on are those of x32, which has calls of its own for the same purposes.
#[cfg(target_arch = "x86_64")]
const X32: u32 = 0x4000_0000;

/// Which system calls sandboxed commands may not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// Those that most escapes from sandboxes use.
    Escapes,
    /// Also sockets of the internet protocols.
    Internet,
}

impl Filter {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Escapes => "escapes",
            Self::Internet => "internet",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        [Self::Escapes, Self::Internet].into_iter().find(|filter| filter.as_str() == name)
    }
}

/// Both filters, one for each answer.
fn programs(filter: Filter) -> Result<[BpfProgram; 2], BackendError> {
    let mut refused: BTreeMap<i64, Vec<Rule>> = BTreeMap::new();
    for call in REFUSED.iter().chain(REFUSED_HERE) {
        refused.insert(*call, Vec::new());
    }
    let user = u64::try_from(libc::CLONE_NEWUSER).unwrap_or_default();
    let is_user = || Condition::new(0, Length::Qword, Compare::MaskedEq(user), user);
    refused.insert(libc::SYS_clone, vec![Rule::new(vec![is_user()?])?]);
    refused.insert(libc::SYS_unshare, vec![Rule::new(vec![is_user()?])?]);
    let none_of = |values: &[u64]| {
        let differs = |value: &u64| Condition::new(0, Length::Dword, Compare::Ne, *value);
        Rule::new(values.iter().map(differs).collect::<Result<_, _>>()?)
    };
    refused.insert(libc::SYS_personality, vec![none_of(&PERSONALITIES)?]);
    let internet = [libc::AF_INET, libc::AF_INET6];
    let families = FAMILIES.iter().filter(|family| filter == Filter::Escapes || !internet.contains(family));
    let families: Vec<u64> = families.map(|family| u64::try_from(*family).unwrap_or_default()).collect();
    let netlink = u64::try_from(libc::AF_NETLINK).unwrap_or_default();
    let route = u64::try_from(libc::NETLINK_ROUTE).unwrap_or_default();
    let other_netlink = Rule::new(vec![
        Condition::new(0, Length::Dword, Compare::Eq, netlink)?,
        Condition::new(2, Length::Dword, Compare::Ne, route)?,
    ])?;
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        refused.insert(call, vec![none_of(&families)?, other_netlink.clone()]);
    }
    let request = |value| Rule::new(vec![Condition::new(1, Length::Dword, Compare::Eq, value)?]);
    refused.insert(libc::SYS_ioctl, TERMINAL_INPUT.into_iter().map(request).collect::<Result<_, _>>()?);
    let missing = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    Ok([program(refused, libc::EPERM)?, program(missing, libc::ENOSYS)?])
}

/// The bytes of both filters.
fn filters(filter: Filter) -> Result<[Vec<u8>; 2], BackendError> {
    Ok(programs(filter)?.map(bytes))
}

/// Refuses these calls to this process, which has one thread, and to all that it starts.
pub(crate) fn apply(filter: Filter) -> io::Result<()> {
    for program in programs(filter).map_err(io::Error::other)? {
        seccompiler::apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

fn program(rules: BTreeMap<i64, Vec<Rule>>, errno: i32) -> Result<BpfProgram, BackendError> {
    let refuse = SeccompAction::Errno(u32::try_from(errno).unwrap_or_default());
    let target = TargetArch::try_from(ARCH)?;
    let program: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, refuse, target)?.try_into()?;
    Ok(before(program))
}

/// The library does not know x32: without this check, `number | X32` would pass. A debugger skips a call by the number
/// -1, which is none of them.
#[cfg(target_arch = "x86_64")]
fn before(program: BpfProgram) -> BpfProgram {
    let load_number = sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    let is_skipped = sock_filter { code: 0x15, jt: 2, jf: 0, k: u32::MAX };
    let is_x32 = sock_filter { code: 0x35, jt: 0, jf: 1, k: X32 };
    let refuse = sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x0005_0000 | libc::EPERM.unsigned_abs() };
    let mut all = vec![load_number, is_skipped, is_x32, refuse];
    all.extend(program);
    all
}

#[cfg(not(target_arch = "x86_64"))]
fn before(program: BpfProgram) -> BpfProgram {
    program
}

/// The form in which the kernel reads a filter.
fn bytes(program: BpfProgram) -> Vec<u8> {
    let one = |it: sock_filter| {
        let [code, k] = [it.code.to_ne_bytes().to_vec(), it.k.to_ne_bytes().to_vec()];
        [code, vec![it.jt, it.jf], k].concat()
    };
    program.into_iter().flat_map(one).collect()
}

/// Both filters as files, for [`FILTER_DESCRIPTORS`]. They can be read once.
pub(crate) fn files(filter: Filter) -> io::Result<[OwnedFd; 2]> {
    let [refused, missing] = filters(filter).map_err(io::Error::other)?;
    Ok([file(&refused)?, file(&missing)?])
}

fn file(content: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("filter", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file.into())
}

#[cfg(all(test, target_arch = "x86_64"))]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "these are tests")]
mod tests {
    use super::*;

    /// This architecture, and that of 32-bit programs, as the kernel names them.
    const NATIVE: u32 = 0xc000_003e;
    const I386: u32 = 0x4000_0003;
    const ALLOW: u32 = 0x7fff_0000;
    const KILL: u32 = 0x8000_0000;

    fn refuses(errno: i32) -> u32 {
        0x0005_0000 | errno.unsigned_abs()
    }

    /// The answer of a filter to a call, computed as the kernel does.
    fn answer(program: &[u8], number: u32, architecture: u32, arguments: [u64; 6]) -> u32 {
        let mut data = [number.to_ne_bytes(), architecture.to_ne_bytes()].concat();
        data.extend([0; 8]);
        data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
        let word = |at: u32| u32::from_ne_bytes(data[at as usize..][..4].try_into().unwrap());
        let (mut at, mut register) = (0_usize, 0_u32);
        loop {
            let instruction = &program[at * 8..][..8];
            let code = u16::from_ne_bytes([instruction[0], instruction[1]]);
            let (yes, no) = (usize::from(instruction[2]), usize::from(instruction[3]));
            let value = u32::from_ne_bytes(instruction[4..].try_into().unwrap());
            at += 1;
            let jump = |holds: bool| if holds { yes } else { no };
            at += match code {
                0x06 => return value,
                0x20 => {
                    register = word(value);
                    0
                }
                0x54 => {
                    register &= value;
                    0
                }
                0x05 => value as usize,
                0x15 => jump(register == value),
                0x25 => jump(register > value),
                0x35 => jump(register >= value),
                _ => panic!("unknown instruction {code:#x}"),
            };
        }
    }

    fn answers(call: i64, arguments: [u64; 6]) -> [u32; 2] {
        let number = u32::try_from(call).unwrap();
        filters(Filter::Escapes).unwrap().map(|program| answer(&program, number, NATIVE, arguments))
    }

    #[test]
    fn calls_of_x32_and_of_other_architectures_do_not_pass() {
        let [refused, missing] = filters(Filter::Escapes).unwrap();
        for call in [libc::SYS_read, libc::SYS_mount] {
            let number = u32::try_from(call).unwrap();
            assert_eq!(answer(&refused, number | X32, NATIVE, [0; 6]), refuses(libc::EPERM));
            assert_eq!(answer(&refused, number, I386, [0; 6]), KILL);
        }
        // A debugger skips a call by this number.
        assert_eq!([&refused, &missing].map(|it| answer(it, u32::MAX, NATIVE, [0; 6])), [ALLOW, ALLOW]);
    }

    #[test]
    fn only_the_arguments_that_reach_more_of_the_kernel_are_refused() {
        let refused = [refuses(libc::EPERM), ALLOW];
        let user = u64::try_from(libc::CLONE_NEWUSER).unwrap();
        let first = |value: u64| [value, 0, 0, 0, 0, 0];
        assert_eq!(answers(libc::SYS_clone, first(user | 0x11)), refused);
        assert_eq!(answers(libc::SYS_clone, first(0x3d_0f00)), [ALLOW; 2], "a thread");
        assert_eq!(answers(libc::SYS_unshare, first(user)), refused);
        assert_eq!(answers(libc::SYS_unshare, first(0x400)), [ALLOW; 2]);
        assert_eq!(answers(libc::SYS_personality, first(0x4_0000)), [ALLOW; 2]);
        assert_eq!(answers(libc::SYS_personality, first(0x40_0000)), refused);
        assert_eq!(answers(libc::SYS_ioctl, [0, libc::TIOCSTI, 0, 0, 0, 0]), refused);
        assert_eq!(answers(libc::SYS_ioctl, [0, libc::TIOCGWINSZ, 0, 0, 0, 0]), [ALLOW; 2]);
        // The kernel ignores the upper half of a request.
        assert_eq!(answers(libc::SYS_ioctl, [0, 1 << 32 | libc::TIOCSTI, 0, 0, 0, 0]), refused);
        for (family, protocol, expected) in
            [(1, 0, [ALLOW; 2]), (2, 6, [ALLOW; 2]), (16, 0, [ALLOW; 2]), (16, 16, refused), (40, 0, refused)]
        {
            assert_eq!(answers(libc::SYS_socket, [family, 1, protocol, 0, 0, 0]), expected, "{family}");
        }
        assert_eq!(answers(libc::SYS_clone3, [0; 6]), [ALLOW, refuses(libc::ENOSYS)]);
        for call in
            [libc::SYS_read, libc::SYS_ptrace, libc::SYS_futex, libc::SYS_seccomp, libc::SYS_memfd_create]
        {
            assert_eq!(answers(call, [0; 6]), [ALLOW; 2], "{call}");
        }
        for call in REFUSED.iter().chain(REFUSED_HERE) {
            assert_eq!(answers(*call, [0; 6]), refused, "{call}");
        }
    }

    #[test]
    fn without_the_internet_only_its_sockets_are_refused_too() {
        let [program, _] = filters(Filter::Internet).unwrap();
        let call = u32::try_from(libc::SYS_socket).unwrap();
        let opens = |family: i32| {
            let family = u64::try_from(family).unwrap();
            answer(&program, call, NATIVE, [family, 1, 0, 0, 0, 0]) != refuses(libc::EPERM)
        };
        assert_eq!(
            [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK].map(opens),
            [true, false, false, true]
        );
    }
}
