use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn read(platform: &[(&str, &str)]) -> Result<Needs, InvalidNeed> {
    read_needs(&pairs(platform), &[]).map(|found| found.needs)
}

fn learned(cpu_millis: u64, memory_bytes: u64) -> Learned {
    Learned { cpu_millis: Some(cpu_millis), memory_bytes: Some(memory_bytes), at_least: false }
}

fn machine() -> Resources {
    Resources::new(8000, 16_000_000_000)
}

#[test]
fn processors_and_memory_are_read_as_people_write_them() {
    let cpu = |text| read(&[("EstimatedCPU", text)]).map(|needs| needs.cpu_millis.unwrap());
    for (text, millis) in
        [("2", 2000), ("0.5", 500), ("4000m", 4000), ("+0.1e+1", 1000), ("4e3m", 4000), (" 1 ", 1000)]
    {
        assert_eq!(cpu(text), Ok(millis), "{text}");
    }
    let memory = |text| read(&[("EstimatedMemory", text)]).map(|needs| needs.memory_bytes.unwrap());
    for (text, bytes) in [
        ("1e9", 1_000_000_000),
        ("1000B", 1000),
        ("1000", 1000),
        ("1M", 1 << 20),
        ("2GB", 2 << 30),
        ("2.0GB", 2 << 30),
        ("2gib", 2 << 30),
        ("0.5K", 512),
        ("1 TB", 1 << 40),
        ("1e3", 1000),
    ] {
        assert_eq!(memory(text), Ok(bytes), "{text}");
    }
}

#[test]
fn a_bad_value_is_named_with_what_is_expected() {
    let bad = [
        ("EstimatedCPU", &["", "two", "0", "-1", "inf", "nan", "1e9", "m", "2 cores"][..]),
        ("EstimatedMemory", &["", "much", "0", "-1GB", "inf", "1e30", "GB", "B", "2iB", "2PB"]),
        ("EstimatedComputeUnits", &["", "x", "0", "NaN"]),
        ("resources:gpu", &["blah", "", "-1", "1e10"]),
        ("exclusive", &["yes", "", "1"]),
        ("measured", &["no", "2"]),
    ];
    for (property, values) in bad {
        for value in values {
            let error = read(&[(property, value)]).unwrap_err();
            assert_eq!((error.property.as_str(), error.value.as_str()), (property, *value));
            let text = error.to_string();
            assert!(text.contains(property) && text.contains("\": expected "), "{text}");
        }
    }
    let error = read(&[("estimatedcpu", "two")]).unwrap_err().to_string();
    let text = "invalid value \"two\" of platform property \"estimatedcpu\": \
                expected a number of processors above 0, such as 2, 0.5 or 4000m";
    assert_eq!(error, text);
    assert!(read(&[("resources:", "1")]).is_err(), "a name is missing");
    assert_eq!(read(&[("EstimatedCPU", &"9".repeat(999))]).unwrap_err().value.len(), 200);
}

#[test]
fn units_give_both_and_what_is_said_beside_them_overrides_its_part() {
    let both = read(&[("EstimatedComputeUnits", "2")]).unwrap();
    assert_eq!((both.cpu_millis, both.memory_bytes), (Some(2000), Some(5_000_000_000)));
    for order in [[0, 1], [1, 0]] {
        let said = [("EstimatedComputeUnits", "2"), ("EstimatedMemory", "1000")];
        let needs = read(&order.map(|at| said[at])).unwrap();
        assert_eq!((needs.cpu_millis, needs.memory_bytes), (Some(2000), Some(1000)));
    }
}

#[test]
fn names_are_read_without_regard_to_case_and_the_rest_is_left_for_pools() {
    let platform = pairs(&[
        ("OSFamily", "linux"),
        ("ESTIMATEDCPU", "1"),
        ("Resources:gpu", "0.5"),
        ("estimatedMemory", "1K"),
        ("Exclusive", "True"),
        ("Pool", "x"),
        ("EstimatedCPU", "3"),
        ("estimatedcpu", "2"),
        ("limit-files", "7"),
        ("Network", "off"),
        ("dockerNetwork", "bridge"),
    ]);
    let found = read_needs(&platform, &pairs(&[("HOME", "/"), ("TEST_SIZE", "large")])).unwrap();
    assert_eq!(found.platform, pairs(&[("OSFamily", "linux"), ("Pool", "x"), ("network", "on")]));
    let gpu = BTreeMap::from([("gpu".parse().unwrap(), "0.5".parse().unwrap())]);
    let needs = Needs {
        cpu_millis: Some(3000),
        memory_bytes: Some(1024),
        custom: gpu,
        exclusive: true,
        measured: false,
        shared_services: model::SharedServices::None,
        test_size: TestSize::Large,
    };
    assert_eq!(found.needs, needs);
    assert_eq!(found.limits.common.files, Some(7));
    assert!(read_needs(&pairs(&[("limit-files", "0")]), &[]).is_err());
    assert_eq!(read_needs(&[], &[]).unwrap(), AskedFor::default());
}

#[test]
fn what_is_measured_is_not_cached() {
    let asked = |value| read_needs(&pairs(&[("Measured", value)]), &[]).unwrap();
    assert!(asked("true").needs.measured && asked("true").do_not_cache);
    assert_eq!(asked("false"), AskedFor::default());
    assert!(
        refuses_cache(&pairs(&[("measured", "true")])) && !refuses_cache(&pairs(&[("measured", "false")]))
    );
    assert!(refuses_cache(&pairs(&[("cache", "false")])) && !refuses_cache(&pairs(&[("cache", "true")])));
}

#[test]
fn a_test_without_a_known_size_is_enormous() {
    let size =
        |value| read_needs(&[], &pairs(&[("TEST_SIZE", value)])).map(|found| found.needs.test_size).unwrap();
    let sizes = ["", "small", "medium", "large", "enormous", "giant"].map(size);
    let stated = [TestSize::Small, TestSize::Medium, TestSize::Large, TestSize::Enormous, TestSize::Enormous];
    assert_eq!((sizes[0], &sizes[1..]), (TestSize::None, &stated[..]));
}

#[test]
fn a_plain_action_counts_as_a_slot() {
    let plain = asked(&Needs::default(), &machine());
    assert_eq!(plain, Resources::new(1000, 400_000_000));
    let sizes = [TestSize::Small, TestSize::Medium, TestSize::Large, TestSize::Enormous];
    let memory = sizes.map(|test_size| {
        let size = asked(&Needs { test_size, ..Needs::default() }, &machine());
        assert_eq!(size.cpu_millis, 1000);
        size.memory_bytes
    });
    assert!(memory.is_sorted(), "{memory:?}");
}

#[test]
fn an_executor_with_little_memory_still_runs_as_many_plain_actions_as_it_has_slots() {
    let small = Resources::new(16_000, 1_600_000_000);
    let size = packing(&Needs::default(), None, None, &small);
    assert_eq!(size, Resources::new(1000, 100_000_000));
    assert_eq!(asked(&Needs::default(), &small), size, "so it fits also where it is not packed");
    let asks = Needs { memory_bytes: Some(400_000_000), ..Needs::default() };
    assert_eq!(packing(&asks, None, None, &small).memory_bytes, 400_000_000, "a request is granted");
}

#[test]
fn what_was_measured_counts_rather_than_what_is_asked_for() {
    let needs = Needs {
        cpu_millis: Some(4000),
        memory_bytes: Some(8_000_000_000),
        custom: BTreeMap::from([("gpu".parse().unwrap(), Amount::whole(1))]),
        ..Needs::default()
    };
    let size = packing(&needs, Some(learned(1500, 900_000_000)), None, &machine());
    assert_eq!((size.cpu_millis, size.memory_bytes), (1500, 900_000_000));
    assert_eq!(size.custom, needs.custom);
    let only_memory = Learned { cpu_millis: None, ..learned(0, 900_000_000) };
    assert_eq!(packing(&needs, Some(only_memory), None, &machine()).cpu_millis, 4000);
}

#[test]
fn what_is_known_only_of_its_kind_takes_nothing_from_what_is_asked_for() {
    let of_kind = Some(Learned { at_least: true, ..learned(500, 900_000_000) });
    let asks = Needs { memory_bytes: Some(8_000_000_000), ..Needs::default() };
    assert_eq!(packing(&asks, of_kind, None, &machine()), Resources::new(500, 8_000_000_000));
    assert_eq!(packing(&Needs::default(), of_kind, None, &machine()), Resources::new(500, 900_000_000));
    let less = Needs { memory_bytes: Some(100_000_000), ..Needs::default() };
    assert_eq!(packing(&less, of_kind, None, &machine()).memory_bytes, 900_000_000);
}

#[test]
fn what_ran_out_of_memory_has_more_but_never_more_than_there_is() {
    let grown =
        |bytes| packing(&Needs::default(), Some(learned(1000, 1_000_000_000)), Some(bytes), &machine());
    assert_eq!(grown(2_000_000_000).memory_bytes, 2_000_000_000);
    assert_eq!(grown(500_000_000).memory_bytes, 1_000_000_000, "it never lowers");
    assert_eq!(grown(99_000_000_000).memory_bytes, 16_000_000_000);
}

#[test]
fn an_executor_can_run_what_it_has_as_much_for() {
    let needs = Needs { cpu_millis: Some(8001), ..Needs::default() };
    assert_eq!(shortage(&needs, &machine()), Some(Shortage::Cpu(8001)));
    assert_eq!(shortage(&needs, &Resources::new(8001, 1)), None, "the default is not a requirement");
    assert_eq!(shortage(&needs, &Resources::default()), None, "its size is unknown");
    let memory = Needs { memory_bytes: Some(16_000_000_001), ..Needs::default() };
    assert_eq!(shortage(&memory, &machine()), Some(Shortage::Memory(16_000_000_001)));
    let gpu: ResourceName = "gpu".parse().unwrap();
    let custom = Needs { custom: BTreeMap::from([(gpu.clone(), Amount::whole(1))]), ..Needs::default() };
    assert_eq!(shortage(&custom, &machine()), Some(Shortage::Custom(&gpu, Amount::whole(1))));
}

fn any_needs() -> impl Strategy<Value = Needs> {
    let amount = || proptest::option::of(1_u64..1 << 40);
    let sizes = prop::sample::select(vec![TestSize::None, TestSize::Small, TestSize::Enormous]);
    (amount(), amount(), sizes, any::<bool>()).prop_map(|(cpu_millis, memory_bytes, test_size, gpu)| Needs {
        cpu_millis,
        memory_bytes,
        custom: gpu.then(|| ("gpu".parse().unwrap(), Amount::whole(1))).into_iter().collect(),
        exclusive: false,
        measured: false,
        shared_services: model::SharedServices::None,
        test_size,
    })
}

fn any_learned() -> impl Strategy<Value = Option<Learned>> {
    let amount = || proptest::option::of(1_u64..1 << 40);
    proptest::option::of(
        (amount(), amount(), any::<bool>()).prop_map(|(cpu_millis, memory_bytes, at_least)| Learned {
            cpu_millis,
            memory_bytes,
            at_least,
        }),
    )
}

proptest! {
    #[test]
    fn what_an_executor_can_run_it_can_start_when_it_is_empty(
        needs in any_needs(),
        learned in any_learned(),
        grown in proptest::option::of(0_u64..1 << 50),
        cpu in 1_u64..1 << 20,
        memory in 1_u64..1 << 40,
    ) {
        let custom = BTreeMap::from([("gpu".parse().unwrap(), Amount::whole(1))]);
        let capacity = Resources { custom, ..Resources::new(cpu, memory) };
        let size = packing(&needs, learned, grown, &capacity);
        prop_assert!(size.fits(&capacity));
        prop_assert_eq!(&size.custom, &needs.custom);
        prop_assert!(size.cpu_millis >= LEAST.0.min(cpu) && size.memory_bytes >= LEAST.1.min(memory));
        let more = packing(&needs, learned, Some(grown.unwrap_or_default() + 1_000_000), &capacity);
        prop_assert!(more.memory_bytes >= size.memory_bytes && more.cpu_millis == size.cpu_millis);
    }

    #[test]
    fn what_a_pool_admits_its_largest_executor_can_hold(
        needs in any_needs(),
        cpu in 1_u64..1 << 41,
        memory in 1_u64..1 << 41,
    ) {
        let custom = BTreeMap::from([("gpu".parse().unwrap(), Amount::whole(1))]);
        let capacity = Resources { custom, ..Resources::new(cpu, memory) };
        prop_assert_eq!(asked(&needs, &capacity).fits(&capacity), shortage(&needs, &capacity).is_none());
    }

    #[test]
    fn what_is_asked_for_and_fits_is_what_counts_while_nothing_is_known(needs in any_needs()) {
        let endless = Resources { custom: needs.custom.clone(), ..Resources::new(1 << 60, 1 << 60) };
        let size = packing(&needs, None, None, &endless);
        let asked = asked(&needs, &endless);
        prop_assert_eq!(size.cpu_millis, asked.cpu_millis.max(LEAST.0));
        prop_assert_eq!(size.memory_bytes, asked.memory_bytes.max(LEAST.1));
        prop_assert_eq!(asked.memory_bytes, needs.memory_bytes.unwrap_or(1000));
        prop_assert_eq!(shortage(&needs, &endless), None);
    }

    #[test]
    fn no_text_makes_reading_panic(name in "[ -~]{0,12}", value in "[ -~]{0,12}") {
        for property in [CPU_PROPERTY, MEMORY_PROPERTY, UNITS_PROPERTY, EXCLUSIVE_PROPERTY, &name] {
            let _ = read_needs(&[(property.to_owned(), value.clone())], &[(name.clone(), value.clone())]);
        }
    }

    #[test]
    fn numbers_come_back(millis in 1_u64..1_000_000_000, bytes in 1_u64..1 << 50) {
        let texts = [("EstimatedCPU", format!("{millis}m")), ("EstimatedMemory", format!("{bytes}B"))];
        let found = read_needs(&texts.map(|(name, value)| (name.to_owned(), value)), &[]).unwrap().needs;
        prop_assert_eq!((found.cpu_millis, found.memory_bytes), (Some(millis), Some(bytes)));
    }
}
