//! Statistics of the Redis server of a farm.

use std::collections::BTreeMap;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{error::BenchError, farm::BenchFarm};

/// The answer to `INFO`: lines of `name:value`.
pub(crate) struct RedisInfo(String);

impl RedisInfo {
    /// Reads the statistics over a connection of its own.
    pub(crate) async fn read(farm: &BenchFarm) -> Result<Self, BenchError> {
        let info = info(&farm.endpoints.redis).await;
        info.map(Self).map_err(|error| BenchError::new("reading the statistics of Redis", &error))
    }

    pub(crate) fn value(&self, name: &str) -> Result<u64, BenchError> {
        let value = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = value.and_then(|value| value.trim().parse().ok());
        value.ok_or_else(|| BenchError::plain(format!("Redis does not report {name}")))
    }

    /// Number of calls by command.
    pub(crate) fn calls(&self) -> BTreeMap<String, u64> {
        calls(&self.0)
    }
}

/// Calls by command, from lines such as `cmdstat_get:calls=21,usec=175`.
fn calls(info: &str) -> BTreeMap<String, u64> {
    let call = |line: &str| {
        let (name, values) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), values.split(',').next()?.parse().ok()?))
    };
    info.lines().filter_map(call).collect()
}

async fn info(url: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(url.strip_prefix("redis://").unwrap_or(url)).await?;
    connection.write_all(b"INFO everything\r\nQUIT\r\n").await?;
    let mut text = String::new();
    connection.read_to_string(&mut text).await?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    #[test]
    fn calls_are_read_by_command() {
        let info = "# Stats\r\ntotal_reads_processed:7\r\ncmdstat_client|setinfo:calls=2,usec=5\r\n\
            cmdstat_evalsha:calls=31,usec=175,usec_per_call=8.33\r\nerrorstat_ERR:count=1\r\n";
        let wanted = BTreeMap::from([("client|setinfo".to_owned(), 2), ("evalsha".to_owned(), 31)]);
        assert_eq!(super::calls(info), wanted);
    }
}
