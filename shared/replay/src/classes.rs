//! Groups equal jobs and equal workers into classes, so that an event costs the number of classes, not of workers.

use std::collections::HashMap;

use crate::stream::{InvalidStream, Job, Stream};

/// Which classes of jobs run on which classes of workers.
#[derive(Debug)]
pub struct Classes {
    /// Demand of each job: jobs with the same demand can run on the same workers.
    demand_of: Vec<u32>,
    demands: Vec<Demand>,
    /// Site of each worker: workers of the same site can run the same jobs.
    site_of: Vec<u32>,
    /// Demands that each site meets.
    sites: Vec<Vec<u32>>,
}

/// The workers and sites that can run jobs of one demand.
#[derive(Debug)]
struct Demand {
    /// Workers that can run the jobs, by number.
    workers: Vec<u32>,
    /// Sites of those workers.
    sites: Vec<u32>,
}

impl Classes {
    /// Computes the classes of `stream`.
    pub fn of(stream: &Stream) -> Result<Self, InvalidStream> {
        let mut numbers: HashMap<Vec<u32>, u32> = HashMap::new();
        let mut demand_of_requirements = Vec::new();
        let mut demands: Vec<Demand> = Vec::new();
        for workers in stream.able()? {
            let next = count(demands.len());
            let number = *numbers.entry(workers).or_insert_with_key(|workers| {
                demands.push(Demand { workers: workers.clone(), sites: Vec::new() });
                next
            });
            demand_of_requirements.push(number);
        }
        let mut met = vec![Vec::new(); stream.workers.len()];
        for (number, demand) in (0..).zip(&demands) {
            for worker in &demand.workers {
                let Some(met) = met.get_mut(*worker as usize) else {
                    unreachable!("worker {worker} is not in the stream");
                };
                met.push(number);
            }
        }
        let (mut numbers, mut sites) = (HashMap::new(), Vec::new());
        let mut site_of = Vec::new();
        for met in met {
            let next = count(sites.len());
            let number = *numbers.entry(met).or_insert_with_key(|met: &Vec<u32>| {
                for demand in met {
                    let Some(demand) = demands.get_mut(*demand as usize) else {
                        unreachable!("demand {demand} was not numbered");
                    };
                    demand.sites.push(next);
                }
                sites.push(met.clone());
                next
            });
            site_of.push(number);
        }
        let demand = |job: &Job| {
            let Some(demand) = demand_of_requirements.get(job.requirements as usize) else {
                unreachable!("a job has unknown requirements");
            };
            *demand
        };
        let demand_of = stream.jobs.iter().map(demand).collect();
        Ok(Self { demand_of, demands, site_of, sites })
    }

    pub fn sites(&self) -> usize {
        self.sites.len()
    }

    pub fn demands(&self) -> usize {
        self.demands.len()
    }

    /// Returns the demand of a job.
    pub fn demand(&self, job: u32) -> usize {
        let Some(demand) = self.demand_of.get(job as usize) else {
            unreachable!("job {job} is not in the stream");
        };
        *demand as usize
    }

    /// Returns the site of a worker.
    pub fn site(&self, worker: u32) -> usize {
        let Some(site) = self.site_of.get(worker as usize) else {
            unreachable!("worker {worker} is not in the stream");
        };
        *site as usize
    }

    /// Returns the sites on which `demand` can run.
    pub fn sites_for(&self, demand: usize) -> impl Iterator<Item = usize> {
        self.demands.get(demand).into_iter().flat_map(|demand| &demand.sites).map(|site| *site as usize)
    }

    /// Returns the workers that can run `demand`, by number.
    pub fn workers_for(&self, demand: usize) -> &[u32] {
        self.demands.get(demand).map_or(&[], |demand| &demand.workers)
    }

    /// Returns the demands that a site can run.
    pub fn demands_at(&self, site: usize) -> &[u32] {
        self.sites.get(site).map_or(&[], Vec::as_slice)
    }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
