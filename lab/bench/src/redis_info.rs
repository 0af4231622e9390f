//! Statistics of the Redis server of a farm.

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
}

async fn info(url: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(url.strip_prefix("redis://").unwrap_or(url)).await?;
    connection.write_all(b"INFO\r\nQUIT\r\n").await?;
    let mut text = String::new();
    connection.read_to_string(&mut text).await?;
    Ok(text)
}
