//! Encodes and decodes limits, and the report of an exceeded one.

use std::time::Duration;

use bytes::{Buf, BufMut};

use super::Malformed;
use crate::model::{Limit, Limits, Over};

/// Appends limits: a single byte if there are none, the usual case.
pub(super) fn put_limits(out: &mut Vec<u8>, limits: &Limits) {
    out.put_u8(u8::from(*limits != Limits::default()));
    if *limits == Limits::default() {
        return;
    }
    let cpu = limits.cpu.map(|cpu| u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX - 1));
    let Limits { cpu: _, memory_bytes, processes, disk_bytes, files, file_bytes, user_processes } = *limits;
    for limit in [cpu, memory_bytes, processes, disk_bytes, files, file_bytes, user_processes] {
        out.put_u64_le(limit.unwrap_or(u64::MAX));
    }
}

/// Reads limits written by [`put_limits`].
pub(super) fn get_limits(body: &mut impl Buf) -> Result<Limits, Malformed> {
    if body.try_get_u8()? == 0 {
        return Ok(Limits::default());
    }
    let mut limit = || -> Result<_, Malformed> {
        let limit = body.try_get_u64_le()?;
        Ok((limit != u64::MAX).then_some(limit))
    };
    Ok(Limits {
        cpu: limit()?.map(Duration::from_nanos),
        memory_bytes: limit()?,
        processes: limit()?,
        disk_bytes: limit()?,
        files: limit()?,
        file_bytes: limit()?,
        user_processes: limit()?,
    })
}

/// Appends the report of an exceeded limit.
pub(super) fn put_over(out: &mut Vec<u8>, over: Over) {
    out.put_u8(limit_code(over.limit));
    out.put_u64_le(over.allowed);
    out.put_u64_le(over.used);
}

/// Reads a report written by [`put_over`].
pub(super) fn get_over(body: &mut impl Buf) -> Result<Over, Malformed> {
    Ok(Over {
        limit: limit_of(body.try_get_u8()?),
        allowed: body.try_get_u64_le()?,
        used: body.try_get_u64_le()?,
    })
}

fn limit_code(limit: Limit) -> u8 {
    match limit {
        Limit::Cpu => 0,
        Limit::Memory => 1,
        Limit::Processes => 2,
        Limit::Disk => 3,
        Limit::Files => 4,
    }
}

fn limit_of(code: u8) -> Limit {
    match code {
        0 => Limit::Cpu,
        1 => Limit::Memory,
        2 => Limit::Processes,
        3 => Limit::Disk,
        _ => Limit::Files,
    }
}
