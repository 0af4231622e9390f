//! `forebay bench zones`: what trust zones, and a limit of what they have, cost uploads and look-ups of small blobs in a folder.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use bytes::Bytes;
use cas::{Cas, CasConfig, Evictor, EvictorConfig};
use clap::Args;
use command_line::failure::say;
use model::{BlobDigest, DigestFunction, Sight, ZoneLimit};

use crate::{
    error::BenchError, figures::Figures, memory::Memory, report::BenchReport, statistics::median_and_worst,
};

/// Options of `forebay bench zones`.
#[derive(Debug, Args)]
pub(crate) struct ZonesArgs {
    /// Number of blobs of 1 KiB in a round
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..))]
    blobs: u64,
    /// Number of rounds of each store, in turn
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
}

/// Blobs in one batch.
const BATCH: usize = 100;
const ZONE: &str = "bench";

/// How the store is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Whole,
    Zone,
    Limited,
}

impl Way {
    const ALL: [Self; 3] = [Self::Whole, Self::Zone, Self::Limited];

    fn key(self) -> &'static str {
        match self {
            Self::Whole => "without_zones",
            Self::Zone => "with_zones",
            Self::Limited => "with_limits",
        }
    }
}

struct Place {
    way: Way,
    config: CasConfig,
    cas: Cas,
    _evictor: Evictor,
    _folder: tempfile::TempDir,
    /// Microseconds for each blob, by round.
    puts: Vec<f64>,
    finds: Vec<f64>,
}

impl Place {
    fn open(way: Way) -> Result<Self, BenchError> {
        let folder = tempfile::tempdir().map_err(|error| BenchError::new("a temporary folder", &error))?;
        let mut config = CasConfig::new(folder.path());
        if way == Way::Limited {
            let limit = ZoneLimit { bytes_max: 1 << 40, blobs_max: 1 << 30 };
            let limits = BTreeMap::from([(ZONE.to_owned(), limit)]);
            config.zone_limits = limits.try_into().map_err(|error| BenchError::new(ZONE, &error))?;
        }
        let failed = |error: cas::CasError| BenchError::new("opening a store", &error);
        let cas = Cas::open(config.clone()).map_err(failed)?;
        let bounds = EvictorConfig { bytes_max: 1 << 40, free_bytes_min: 0 };
        let evictor = Evictor::open(&cas, bounds).map_err(failed)?;
        let cas = seen(&cas, way)?;
        let (puts, finds) = (Vec::new(), Vec::new());
        Ok(Self { way, config, cas, _evictor: evictor, _folder: folder, puts, finds })
    }

    /// Stores the blobs, and looks them up as a process does that knows nothing of them.
    async fn measure(&mut self, blobs: &[(BlobDigest, Bytes)]) -> Result<(), BenchError> {
        let begun = Instant::now();
        for batch in blobs.chunks(BATCH) {
            for stored in self.cas.put_many(batch.to_vec()).await {
                stored.map_err(|error| BenchError::new("storing a blob", &error))?;
            }
        }
        self.puts.push(each(begun.elapsed(), blobs));
        let other = Cas::open(self.config.clone());
        let other = seen(&other.map_err(|error| BenchError::new("opening a store", &error))?, self.way)?;
        let digests: Vec<BlobDigest> = blobs.iter().map(|(digest, _)| *digest).collect();
        let begun = Instant::now();
        for batch in digests.chunks(BATCH) {
            let missing = other.missing(batch).await;
            let missing = missing.map_err(|error| BenchError::new("looking up blobs", &error))?;
            if !missing.is_empty() {
                return Err(BenchError::plain(format!("{} blobs are missing", missing.len())));
            }
        }
        self.finds.push(each(begun.elapsed(), blobs));
        Ok(())
    }
}

fn seen(cas: &Cas, way: Way) -> Result<Cas, BenchError> {
    if way == Way::Whole {
        return Ok(cas.clone());
    }
    let zone = ZONE.parse().map_err(|error: model::ParseIdError| BenchError::new(ZONE, &error))?;
    Ok(cas.seen_by(&Sight { zone, parent: None, is_bounded: true }))
}

fn each<T>(time: Duration, of: &[T]) -> f64 {
    time.as_secs_f64() * 1e6 / of.len().max(1) as f64
}

/// Runs `forebay bench zones`.
pub(crate) async fn measure(args: &ZonesArgs) -> Result<BenchReport, BenchError> {
    let mut places = Way::ALL.into_iter().map(Place::open).collect::<Result<Vec<_>, _>>()?;
    say(&format!("storing {} blobs in each of {} stores, in turn", args.blobs * args.rounds, places.len()));
    for round in 0..=args.rounds {
        let content = |n: u64| {
            let mut content = vec![7; 1024];
            let own = [round.to_le_bytes(), n.to_le_bytes()].concat();
            content.iter_mut().zip(own).for_each(|(byte, own)| *byte = own);
            Bytes::from(content)
        };
        let content = (0..args.blobs).map(content);
        let blobs: Vec<_> =
            content.map(|content| (DigestFunction::Sha256.digest(&content), content)).collect();
        for place in &mut places {
            place.measure(&blobs).await?;
        }
        // The next round begins with another one.
        places.rotate_left(1);
    }
    let mut figures = Figures::default();
    figures.field("rounds", args.rounds);
    for way in Way::ALL {
        for place in places.iter_mut().filter(|place| place.way == way) {
            let mut of_way = Figures::default();
            // The first round makes the folders.
            for (key, name, times) in [
                ("put_us", "a small blob stored", &mut place.puts),
                ("find_us", "a blob looked up", &mut place.finds),
            ] {
                let mut times = times.split_off(1);
                let (median, worst) = median_and_worst(&mut times);
                let name = format!("{name}, {}", way.key().replace('_', " "));
                of_way.figure(key, &name, median, "µs");
                of_way.figure(&format!("{key}_worst"), &format!("{name}, slowest round"), worst, "µs");
            }
            figures.part(way.key(), of_way);
        }
    }
    let options = format!(", rounds of {} blobs of 1 KiB", args.blobs);
    Ok(BenchReport::new(&options, figures, Memory::default()))
}
