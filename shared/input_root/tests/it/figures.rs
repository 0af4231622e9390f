//! Measures the speed: `cargo nextest run -p input_root --run-ignored only --no-capture`.

use std::{
    fs,
    time::{Duration, Instant},
};

use crate::common::*;

async fn many(rig: &Rig, count: usize, per_dir: usize) -> model::BlobDigest {
    let nodes: Vec<(String, Node)> = (0..count)
        .map(|at| (format!("d{}/e{}/f{at}", at / per_dir / 16, at / per_dir % 16), file(&format!("{at}"))))
        .collect();
    rig.input(&nodes.iter().map(|(path, node)| (&**path, node.clone())).collect::<Vec<_>>()).await
}

/// A store without cached state, over the folder of another.
fn forgetful(rig: Rig) -> Rig {
    let Rig { dir, cas, roots, slots } = rig;
    drop((cas, roots));
    let cas = cas::Cas::open(cas::CasConfig::new(dir.path().join("cas"))).unwrap();
    let config = input_root::InputRootsConfig::new(cas.clone(), dir.path().join("roots"), owner());
    Rig { roots: input_root::InputRoots::open(config).unwrap(), dir, cas, slots }
}

/// The lower bound: only creates as many directories, and links all files of a folder into one of them.
fn floor(rig: &Rig, root: &std::path::Path, dirs: usize) -> (Duration, Duration) {
    let mut files = Vec::new();
    let mut stack = vec![root.to_owned()];
    while let Some(path) = stack.pop() {
        if path.is_dir() {
            stack.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            files.push(path);
        }
    }
    let to = rig.dir.path().join("floor");
    let start = Instant::now();
    fs::create_dir(&to).unwrap();
    for at in 0..dirs {
        fs::create_dir(to.join(format!("d{at}"))).unwrap();
    }
    let made = start.elapsed();
    let start = Instant::now();
    for (at, file) in files.iter().enumerate() {
        fs::hard_link(file, to.join(format!("d{}/{at}", at % dirs))).unwrap();
    }
    (made, start.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn preparing() {
    for (count, per_dir) in [(5_000, 20), (5_000, 5_000), (20_000, 20)] {
        let rig = Rig::new();
        let digest = many(&rig, count, per_dir).await;
        let rig = forgetful(rig);
        let start = Instant::now();
        let root = rig.prepare(&digest).await;
        let cold = start.elapsed();
        let floor = floor(&rig, root.path(), count / per_dir);
        let start = Instant::now();
        let second = rig.prepare(&digest).await;
        let relink = start.elapsed();
        rig.roots.release(root).await;
        rig.roots.release(second).await;
        let start = Instant::now();
        rig.roots.settled().await;
        let audit = start.elapsed() / 2;
        let start = Instant::now();
        let root = rig.prepare(&digest).await;
        let warm = start.elapsed();
        println!(
            "{count} files, {per_dir} a directory: cold {cold:?} = {:.0}/s, floor {floor:?}, again {relink:?} = {:.0}/s, warm {warm:?}, audit {audit:?}",
            count as f64 / cold.as_secs_f64(),
            count as f64 / relink.as_secs_f64(),
        );
        drop(root);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn small_actions() {
    let rig = Rig::new();
    for (what, digest) in [
        ("empty", rig.input(&[]).await),
        ("3 files", rig.input(&[("a/b", file("1")), ("a/c", file("2")), ("d", file("3"))]).await),
    ] {
        for spec in [outputs(&[]), outputs(&["out/x"])] {
            let count = 500;
            let mut writing = Duration::ZERO;
            let start = Instant::now();
            for at in 0..count {
                let root = rig.prepare_for(&digest, &spec).await.unwrap();
                if spec != outputs(&[]) {
                    let start = Instant::now();
                    fs::write(root.path().join("out/x"), format!("{what} {at}")).unwrap();
                    writing += start.elapsed();
                }
                rig.collect(&root, &spec).await.unwrap();
                rig.roots.release(root).await;
            }
            let own = start.elapsed().saturating_sub(writing) / count;
            println!(
                "{what}, {}: {own:?} an action, and {:?} to write its output",
                if spec == outputs(&[]) { "no output" } else { "an output" },
                writing / count
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn large_outputs() {
    for (count, per_dir) in [(50_000, 50_000), (250_000, 500)] {
        let rig = Rig::new();
        let spec = outputs(&["out"]);
        let root = rig.prepare_for(&rig.input(&[]).await, &spec).await.unwrap();
        for at in 0..count {
            let dir = root.path().join(format!("out/d{}", at / per_dir));
            if at % per_dir == 0 {
                fs::create_dir_all(&dir).unwrap();
            }
            fs::write(dir.join(format!("file-{at}")), format!("content {}", at % 2000)).unwrap();
        }
        let start = Instant::now();
        let collected = rig.collect(&root, &spec).await.unwrap();
        let took = start.elapsed();
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        assert_eq!(collected.file_count, count);
        println!("{count} files put out: {took:?} = {:.0}/s; {peak}", count as f64 / took.as_secs_f64());
        rig.roots.release(root).await;
        let start = Instant::now();
        rig.roots.settled().await;
        println!("thrown away in {:?}", start.elapsed());
    }
}
