//! Machines as folders of files, and what the check finds on them.

use std::{fs, path::Path};

use tempfile::TempDir;

use super::{
    files::Files,
    judge,
    machine::{Counters, Machine},
};
use crate::doctor::{Finding, Status, exit_code};

/// The files of a machine below a temporary root.
struct Fixture {
    folder: TempDir,
}

impl Fixture {
    fn new(files: &[(&str, &str)]) -> Self {
        let fixture = Self { folder: tempfile::tempdir().unwrap() };
        for (path, text) in files {
            fixture.write(path, text);
        }
        fixture
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// Writes a file of one processor.
    fn cpu(&self, number: u32, path: &str, text: &str) {
        self.write(&format!("sys/devices/system/cpu/cpu{number}/{path}"), text);
    }

    /// Replaces a file by a folder, which cannot be read.
    fn damage(&self, path: &str) {
        let path = self.folder.path().join(path);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
    }

    /// Judges the machine. `later` changes its files between both readings of the counters.
    fn judged(&self, later: impl FnOnce(&Self)) -> Vec<Finding> {
        let files = Files::below(self.folder.path());
        let before = Counters::read(&files);
        later(self);
        judge(&Machine::read(&files), &before, &Counters::read(&files), true)
    }
}

fn of<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
    findings.iter().find(|finding| finding.check == check).unwrap()
}

fn names(findings: &[Finding], status: Status) -> Vec<&'static str> {
    findings.iter().filter(|finding| finding.status == status).map(|finding| finding.check).collect()
}

/// One second later, two processors were busy and stolen for so many of 200 ticks.
fn a_second_later(busy: u64, steal: u64) -> impl FnOnce(&Fixture) {
    move |fixture| {
        let idle = 9000 + 200 - busy - steal;
        fixture.write("proc/stat", &format!("cpu  {} 0 0 {idle} 0 0 0 {steal} 0 0\ncpu0 1", 1000 + busy));
    }
}

const IDLE: (&str, &str) = ("proc/stat", "cpu  1000 0 0 9000 0 0 0 0 0 0\ncpu0 1 2");

/// A physical machine with two cores, tuned as in the documentation.
fn tuned() -> Fixture {
    let fixture = Fixture::new(&[
        ("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme ht\n\nprocessor\t: 1\nflags\t\t: fpu vme ht"),
        ("proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority"),
        ("proc/sys/kernel/randomize_va_space", "0"),
        ("proc/pressure/cpu", "some avg10=0.00 avg60=0.02 avg300=0.00 total=9\nfull avg10=0.00 total=0"),
        ("proc/loadavg", "0.03 0.05 0.01 1/200 4242"),
        IDLE,
        ("sys/class/dmi/id/sys_vendor", "Dell Inc."),
        ("sys/devices/system/cpu/online", "0-1"),
        ("sys/devices/system/cpu/isolated", "1"),
        ("sys/devices/system/cpu/smt/active", "0"),
        ("sys/devices/system/cpu/intel_pstate/no_turbo", "1"),
        ("sys/devices/system/node/node0/cpulist", "0"),
        ("sys/devices/system/node/node1/cpulist", "1"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]"),
        ("sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "1"),
    ]);
    for number in 0..2 {
        let own = number.to_string();
        fixture.cpu(number, "cpufreq/scaling_governor", "performance");
        fixture.cpu(number, "topology/thread_siblings_list", &own);
        fixture.cpu(number, "thermal_throttle/core_throttle_count", "0");
        fixture.cpu(number, "thermal_throttle/package_throttle_count", "0");
        caches(&fixture, number, &own, &own);
    }
    fixture
}

/// Writes an instruction cache of the first level, one of the core and the last-level cache.
fn caches(fixture: &Fixture, number: u32, core: &str, package: &str) {
    let all = [("0", "1", "Data", core), ("1", "1", "Instruction", core), ("10", "3", "Unified", package)];
    for (index, level, kind, shared) in all {
        fixture.cpu(number, &format!("cache/index{index}/level"), level);
        fixture.cpu(number, &format!("cache/index{index}/type"), kind);
        fixture.cpu(number, &format!("cache/index{index}/shared_cpu_list"), shared);
    }
}

/// A laptop with the defaults of its distribution: two cores with two threads each.
fn laptop() -> Fixture {
    let fixture = Fixture::new(&[
        ("proc/cpuinfo", "flags\t\t: fpu vme ht"),
        (
            "proc/swaps",
            "Filename Type Size Used Priority\n/dev/dm-1 partition 8388604 0 -2\n/swap\\040file file 1 0 -3",
        ),
        ("proc/sys/kernel/randomize_va_space", "2"),
        ("proc/pressure/cpu", "some avg10=0.31 avg60=1.00 avg300=2.00 total=9"),
        ("proc/loadavg", "0.90 0.80 0.70 2/900 4242"),
        IDLE,
        ("sys/class/dmi/id/sys_vendor", "LENOVO"),
        ("sys/devices/system/cpu/online", "0-3"),
        ("sys/devices/system/cpu/isolated", ""),
        ("sys/devices/system/cpu/smt/active", "1"),
        ("sys/devices/system/cpu/cpufreq/boost", "1"),
        ("sys/devices/system/node/node0/cpulist", "0-3"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never"),
        ("sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "1"),
    ]);
    for number in 0..4 {
        let core = if number % 2 == 0 { "0,2" } else { "1,3" };
        fixture.cpu(
            number,
            "cpufreq/scaling_governor",
            if number == 3 { "performance" } else { "powersave" },
        );
        fixture.cpu(number, "topology/thread_siblings_list", core);
        fixture.cpu(number, "thermal_throttle/core_throttle_count", "7");
        fixture.cpu(number, "thermal_throttle/package_throttle_count", "9");
        caches(&fixture, number, core, "0-3");
    }
    fixture
}

/// A small virtual machine without DMI table, cpufreq and counters of throttling.
fn virtual_machine() -> Fixture {
    let fixture = Fixture::new(&[
        ("proc/cpuinfo", "vendor_id\t: AuthenticAMD\nflags\t\t: fpu hypervisor lahf_lm"),
        ("proc/swaps", "Filename Type Size Used Priority"),
        ("proc/sys/kernel/randomize_va_space", "2"),
        ("proc/pressure/cpu", "some avg10=0.10 avg60=4.01 avg300=21.30 total=1\nfull avg10=0.00 total=0"),
        ("proc/loadavg", "0.10 3.05 3.21 3/111 32112"),
        IDLE,
        ("sys/devices/system/cpu/online", "0-1"),
        ("sys/devices/system/cpu/isolated", ""),
        ("sys/devices/system/cpu/smt/active", "0"),
        ("sys/devices/system/node/node0/cpulist", "0-1"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
        ("sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "1"),
    ]);
    for number in 0..2 {
        fixture.cpu(number, "topology/thread_siblings_list", &number.to_string());
        caches(&fixture, number, &number.to_string(), "0-1");
    }
    fixture
}

#[test]
fn nothing_disturbs_on_a_tuned_machine() {
    let findings = tuned().judged(a_second_later(2, 0));
    assert!(findings.iter().all(|finding| finding.status == Status::Ok), "{findings:#?}");
    assert_eq!(exit_code(&findings), 0);
    assert_eq!(of(&findings, "virtual").found, "a physical machine (Dell Inc.)");
    assert_eq!(of(&findings, "cores").found, "2 physical cores, 2 processors, 2 NUMA nodes");
    assert_eq!(of(&findings, "caches").found, "L3 of processors 0 and of 1");
    assert!(of(&findings, "isolated").found.starts_with("processors 1:"));
    assert_eq!(of(&findings, "summary").found, "times can be compared");
    let slots = of(&findings, "slots").advice.as_ref().unwrap();
    assert!(slots.contains("forebay bench stability"), "{slots}");
}

#[test]
fn a_laptop_disturbs_in_many_ways_and_each_has_its_command() {
    let findings = laptop().judged(a_second_later(2, 0));
    assert_eq!(exit_code(&findings), 1);
    assert_eq!(
        names(&findings, Status::Fail),
        ["governor", "turbo", "smt", "hugepages", "khugepaged", "swap", "summary"]
    );
    assert_eq!(names(&findings, Status::Warn), ["throttling", "aslr"]);
    for (check, found, advice) in [
        ("governor", "powersave on processors 0-2", "scaling_governor"),
        ("turbo", "on: ", "echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost"),
        ("smt", "such as processors 0,2", "echo off"),
        ("swap", "/dev/dm-1, /swap\\040file", "swapoff"),
        ("throttling", "28 times and packages 9 times", "cooling"),
        ("aslr", "on (2)", "setarch -R"),
    ] {
        let finding = of(&findings, check);
        let says = finding.found.contains(found) && finding.advice.as_ref().unwrap().contains(advice);
        assert!(says, "{finding:?}");
    }
    assert_eq!(of(&findings, "cores").found, "2 physical cores, 4 processors, 1 NUMA node");
    assert!(of(&findings, "caches").found.contains("L3 of processors 0-3: measurements at the same time"));
    let summary = &of(&findings, "summary").found;
    assert!(summary.ends_with("governor, turbo, smt, hugepages, khugepaged, swap"), "{summary}");
}

#[test]
fn a_virtual_machine_hides_what_its_host_does() {
    let findings = virtual_machine().judged(a_second_later(2, 1));
    assert_eq!(names(&findings, Status::Fail), ["virtual", "summary"]);
    assert_eq!(names(&findings, Status::Warn), ["governor", "turbo", "throttling", "khugepaged", "aslr"]);
    for check in ["governor", "turbo", "throttling"] {
        let finding = of(&findings, check);
        assert!(finding.found.starts_with("unknown: a virtual machine"), "{finding:?}");
        assert!(finding.advice.as_ref().unwrap().contains("host"), "{finding:?}");
    }
    assert_eq!(of(&findings, "steal").found, "0.5 % in 1 s, 0.01 % since the start of the machine");
    assert!(of(&findings, "caches").found.contains("L3 of processors 0-1: measurements at the same time"));
    assert_eq!(of(&findings, "cores").found, "2 virtual cores, 2 processors, 1 NUMA node");
    assert_eq!(of(&findings, "smt").found, "off, as far as a virtual machine sees it");
}

#[test]
fn what_happens_during_the_check_disturbs() {
    let stolen = virtual_machine().judged(a_second_later(0, 4));
    assert_eq!(of(&stolen, "steal").status, Status::Fail, "{stolen:#?}");
    assert!(of(&stolen, "steal").found.starts_with("2.0 % in 1 s"));

    let busy = tuned().judged(a_second_later(100, 0));
    assert_eq!(names(&busy, Status::Fail), ["load", "summary"]);
    assert!(of(&busy, "load").found.starts_with("1.0 of 2 processors busy for 1 s, "), "{busy:#?}");

    let waits = tuned().judged(|it| it.write("proc/pressure/cpu", "some avg10=1.50 avg60=0.00"));
    assert_eq!(names(&waits, Status::Fail), ["load", "summary"]);

    let hot = tuned().judged(|it| it.cpu(1, "thermal_throttle/core_throttle_count", "1"));
    assert_eq!(names(&hot, Status::Fail), ["throttling", "summary"]);
}

#[test]
fn the_load_average_is_used_without_pressure() {
    let machine = tuned();
    fs::remove_file(machine.folder.path().join("proc/pressure/cpu")).unwrap();
    assert_eq!(of(&machine.judged(a_second_later(2, 0)), "load").status, Status::Ok);
    machine.write("proc/loadavg", "1.00 0.05 0.01 1/200 4242");
    assert_eq!(of(&machine.judged(a_second_later(2, 0)), "load").status, Status::Fail);
}

#[test]
fn switches_for_turbo_are_found_in_all_places() {
    let machine = tuned();
    let turbo = || of(&machine.judged(|_| {}), "turbo").clone();
    fs::remove_file(machine.folder.path().join("sys/devices/system/cpu/intel_pstate/no_turbo")).unwrap();
    assert!(turbo().found.contains("no switch"), "{:?}", turbo());
    machine.cpu(0, "cpufreq/boost", "0");
    assert_eq!(turbo().status, Status::Ok);
    machine.cpu(1, "cpufreq/boost", "1");
    assert!(turbo().status == Status::Fail && turbo().advice.unwrap().contains("cpu*/cpufreq/boost"));
    machine.write("sys/devices/system/cpu/cpufreq/boost", "0");
    assert_eq!(turbo().status, Status::Ok);
    machine.write("sys/devices/system/cpu/intel_pstate/no_turbo", "0");
    assert!(turbo().status == Status::Fail && turbo().advice.unwrap().contains("no_turbo"));
}

#[test]
fn a_virtual_machine_is_recognised_without_flags() {
    let machine = tuned();
    machine.write("proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd");
    assert_eq!(of(&machine.judged(|_| {}), "virtual").status, Status::Warn);
    machine.write("sys/class/dmi/id/sys_vendor", "QEMU");
    assert_eq!(of(&machine.judged(|_| {}), "virtual").status, Status::Fail);
    // Physical machines of clouds have the vendor of their virtual ones, and no flag.
    machine.write("proc/cpuinfo", "flags\t\t: fpu");
    assert_eq!(of(&machine.judged(|_| {}), "virtual").status, Status::Ok);
}

#[test]
fn processors_that_are_offline_do_not_count() {
    let machine = laptop();
    machine.write("sys/devices/system/cpu/online", "0-1");
    machine.write("sys/devices/system/cpu/smt/active", "0");
    for number in 0..2 {
        machine.cpu(number, "topology/thread_siblings_list", &number.to_string());
    }
    machine.cpu(3, "cpufreq/scaling_governor", "<offline>");
    let findings = machine.judged(|_| {});
    assert_eq!(of(&findings, "smt").status, Status::Ok);
    assert!(of(&findings, "governor").found.starts_with("powersave on processors 0-1"));
    assert!(of(&findings, "cores").found.starts_with("2 physical cores, 2 processors"));
}

#[test]
fn of_many_caches_a_few_are_shown() {
    let machine = tuned();
    machine.write("sys/devices/system/cpu/online", "0-9");
    for number in 0..10 {
        let core = number.to_string();
        machine.cpu(number, "topology/thread_siblings_list", &core);
        caches(&machine, number, &core, if number % 2 == 0 { "0,2,4,6,8" } else { &core });
    }
    let findings = machine.judged(|_| {});
    let found = &of(&findings, "caches").found;
    assert!(
        found.starts_with("L3 of processors 0,2,4,6,8 and of 1 and of 3 and of 5, and 2 more: "),
        "{found}"
    );
}

#[test]
fn a_machine_without_any_file_is_unknown() {
    let findings = Fixture::new(&[]).judged(|_| {});
    assert_eq!(names(&findings, Status::Fail), [""; 0]);
    assert_eq!(
        names(&findings, Status::Ok),
        ["binding", "hugepages", "khugepaged", "swap", "slots"],
        "a kernel without them has no such files"
    );
    let warned = findings.iter().filter(|it| it.status == Status::Warn && it.check != "summary");
    for finding in warned {
        assert!(finding.found.starts_with("unknown: ") && finding.advice.is_some(), "{finding:?}");
    }
    assert_eq!(Files::below(Path::new("/no/such")).text("file"), super::files::Reading::Missing);
}

/// Files of the tuned machine that have garbage, and the check that must then be unknown.
const GARBAGE: [(&str, &str); 14] = [
    ("proc/cpuinfo", "virtual"),
    ("proc/swaps", "swap"),
    ("proc/sys/kernel/randomize_va_space", "aslr"),
    ("proc/stat", "steal"),
    ("sys/devices/system/cpu/isolated", "isolated"),
    ("sys/devices/system/cpu/smt/active", "smt"),
    ("sys/devices/system/cpu/intel_pstate/no_turbo", "turbo"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "hugepages"),
    ("sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "khugepaged"),
    ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "governor"),
    ("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "cores"),
    ("sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "throttling"),
    ("sys/devices/system/cpu/cpu1/cache/index10/level", "caches"),
    ("sys/devices/system/cpu/cpu1/cache/index10/shared_cpu_list", "caches"),
];

#[test]
fn garbage_and_unreadable_files_are_unknown() {
    let texts =
        ["-1", "99999999999999999999999", "cpu  1 2", "0-4294967294", "\u{1b}[31m \u{0}", "NaN", "[x]"];
    for (path, check) in GARBAGE {
        for text in texts {
            let machine = tuned();
            machine.write(path, text);
            let findings = machine.judged(|_| {});
            let found = of(&findings, check);
            let is_unknown = found.status == Status::Warn && found.found.starts_with("unknown: ");
            assert!(is_unknown, "{path} with {text:?}: {found:?}");
            assert!(!found.found.contains('\u{1b}'), "{found:?}");
        }
        let machine = tuned();
        machine.damage(path);
        let findings = machine.judged(|_| {});
        let found = of(&findings, check);
        assert!(found.status == Status::Warn && found.found.contains(path), "{path}: {found:?}");
    }
}

#[test]
fn garbage_in_what_is_only_shown_changes_no_judgement() {
    for path in [
        "proc/loadavg",
        "proc/pressure/cpu",
        "sys/class/dmi/id/sys_vendor",
        "sys/devices/system/cpu/online",
        "sys/devices/system/node/node0/cpulist",
    ] {
        let machine = tuned();
        machine.write(path, "some avg10=NaN x \u{1b}");
        let findings = machine.judged(a_second_later(2, 0));
        assert!(
            findings.iter().all(|it| it.status == Status::Ok && !it.found.contains('\u{1b}')),
            "{findings:#?}"
        );
    }
}
