use super::*;

struct PoolTest {
    pool: Pool,
    now: Instant,
    heard: BTreeMap<String, (bool, bool)>,
}

impl PoolTest {
    /// A pool of this many workers that accept work.
    fn with(workers: u16) -> Self {
        let autoscale =
            [(ScaledPool::Workers, settings::PoolScaling { min: workers, max: 9, ..Default::default() })];
        let settings = Settings { autoscale: autoscale.into(), ..Settings::default() };
        let mut pool = Pool::all(&settings).remove(0);
        let heard = pool.begin().into_iter().map(|name| (name, (false, false))).collect();
        Self { pool, now: Instant::now(), heard }
    }

    /// The steps after a pause, with fresh heartbeats.
    fn after(&mut self, pause: Duration) -> Vec<Step> {
        self.now += pause;
        let (now, heard) = (self.now, &self.heard);
        self.pool.steps(
            |name| {
                heard.get(name).map(|(draining, busy)| HeartbeatState {
                    at: now,
                    draining: *draining,
                    busy: *busy,
                })
            },
            now,
        )
    }

    fn is(&mut self, name: &str, draining: bool, busy: bool) {
        self.heard.insert(name.to_owned(), (draining, busy));
    }
}

fn named(names: &[&str], step: fn(String) -> Step) -> Vec<Step> {
    names.iter().map(|name| step((*name).to_owned())).collect()
}

fn without_asks(steps: Vec<Step>) -> Vec<Step> {
    steps.into_iter().filter(|step| *step != Step::Ask).collect()
}

#[test]
fn bounds_are_read_as_they_are_said() {
    let bounds: Bounds = "workers=0..4".parse().unwrap();
    assert_eq!(bounds, Bounds { pool: ScaledPool::Workers, min: 0, max: 4 });
    let mut settings = Settings::default();
    bounds.apply(&mut settings);
    let bounds: Bounds = "executors=1..8".parse().unwrap();
    bounds.apply(&mut settings);
    let scaled: Vec<String> = settings.autoscale.keys().map(ToString::to_string).collect();
    assert_eq!(scaled, ["workers", "executors.default"]);
    for wrong in
        ["workers", "workers=4", "workers=0..", "workers=0..x", "workers=-1..3", "gateways=0..4", "=0..1"]
    {
        assert!(wrong.parse::<Bounds>().is_err(), "{wrong}");
    }
}

#[test]
fn only_pools_whose_processes_a_farm_can_start_are_scaled() {
    let mut settings = Settings::default();
    for text in ["executors=0..1", "executors.gpu=0..1"] {
        text.parse::<Bounds>().unwrap().apply(&mut settings);
    }
    let ours: Vec<String> = Pool::all(&settings).iter().map(|pool| pool.name().to_string()).collect();
    assert_eq!(ours, ["executors.default"]);
}

#[test]
fn what_is_missing_is_started_by_the_lowest_free_numbers() {
    let mut test = PoolTest::with(2);
    assert_eq!(test.after(LOOK), [], "the target is reached");
    test.pool.set_target(4);
    assert_eq!(test.after(LOOK), named(&["worker-3", "worker-4"], Step::Start));
    assert_eq!(test.after(LOOK), [], "they are already starting");
    test.pool.forget("worker-1");
    assert_eq!(test.after(LOOK), named(&["worker-1"], Step::Start));
}

#[test]
fn the_youngest_that_run_nothing_go_once_they_drained() {
    let mut test = PoolTest::with(4);
    test.is("worker-4", false, true);
    test.is("worker-1", false, true);
    test.pool.set_target(2);
    assert_eq!(test.after(LOOK), [Step::Ask], "fresh heartbeats are requested first");
    let drains = without_asks(test.after(HEAR));
    assert_eq!(drains, named(&["worker-3", "worker-2"], Step::Drain));
    assert_eq!(without_asks(test.after(LOOK)), [], "they have not drained yet");
    test.is("worker-3", true, false);
    test.is("worker-2", true, true);
    assert_eq!(without_asks(test.after(LOOK)), []);
    assert_eq!(without_asks(test.after(SURE)), named(&["worker-3"], Step::Stop));
    assert_eq!(
        without_asks(test.after(10 * SURE)),
        [],
        "running work is not interrupted, however long it takes"
    );
    test.pool.forget("worker-3");
    test.is("worker-2", true, false);
    test.after(LOOK);
    assert_eq!(without_asks(test.after(SURE)), named(&["worker-2"], Step::Stop));
    test.pool.forget("worker-2");
    assert_eq!(test.after(LOOK), []);
    assert!(!test.pool.is_moving());
}

#[test]
fn one_that_was_to_go_is_taken_back_before_another_is_started() {
    let mut test = PoolTest::with(3);
    test.pool.set_target(1);
    test.after(LOOK);
    assert_eq!(without_asks(test.after(HEAR)), named(&["worker-3", "worker-2"], Step::Drain));
    test.is("worker-3", true, false);
    test.is("worker-2", true, false);
    test.pool.set_target(4);
    let steps = without_asks(test.after(LOOK));
    assert_eq!(steps[..2], named(&["worker-3", "worker-2"], Step::Resume));
    assert_eq!(steps[2..], named(&["worker-4"], Step::Start));
}

#[test]
fn one_that_does_not_hear_that_it_is_to_stay_is_told_again_and_not_replaced() {
    let mut test = PoolTest::with(2);
    test.pool.set_target(1);
    test.after(LOOK);
    test.after(HEAR);
    test.is("worker-2", true, true);
    test.pool.set_target(2);
    assert_eq!(without_asks(test.after(LOOK)), named(&["worker-2"], Step::Resume));
    // The order was lost, or the heartbeat was on its way.
    for _ in 0..3 {
        assert_eq!(without_asks(test.after(ASK)), named(&["worker-2"], Step::Resume));
        assert_eq!(without_asks(test.after(LOOK)), []);
    }
    test.is("worker-2", false, true);
    assert_eq!(without_asks(test.after(ASK)), []);
    // From now on it is replaced if an operator drains it.
    test.is("worker-2", true, true);
    assert_eq!(without_asks(test.after(LOOK)), named(&["worker-3"], Step::Start));
}

#[test]
fn one_that_does_not_hear_is_told_again_and_never_stopped_unheard() {
    let mut test = PoolTest::with(2);
    test.pool.set_target(1);
    test.after(LOOK);
    test.after(HEAR);
    // It was restarted and does not know the order.
    for _ in 0..3 {
        assert_eq!(without_asks(test.after(ASK)), named(&["worker-2"], Step::Drain));
    }
    test.heard.remove("worker-2");
    assert_eq!(without_asks(test.after(ASK)), named(&["worker-2"], Step::Drain));
}

#[test]
fn one_that_an_operator_drains_is_replaced() {
    let mut test = PoolTest::with(2);
    test.is("worker-1", true, true);
    assert_eq!(test.after(LOOK), named(&["worker-3"], Step::Start));
    assert_eq!(test.after(LOOK), []);
}
