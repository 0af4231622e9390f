//! Environments: reading and changing them in their bucket.

use std::time::Duration;

use model::{BuildId, Environment, EnvironmentChange, EnvironmentDefinition, EnvironmentName, ErrorCode};
use policy::environments::{self, EnvironmentFault, Outcome};

use crate::{Client, ClientError};

/// Time for which an uncertain write is resolved.
const PATIENCE: Duration = Duration::from_secs(10);

impl Client {
    /// All environments that have versions, sorted by name.
    pub async fn environments(&self) -> Result<Vec<Environment>, ClientError> {
        let all = self.bus().buckets().all::<Environment>().await?;
        // Others were not written by Forebay.
        let has_own_key = |(key, environment): &(EnvironmentName, Environment)| *key == environment.name;
        let all = all.into_iter().filter(has_own_key).map(|(_, environment)| environment);
        Ok(all.filter(|environment| !environment.versions.is_empty()).collect())
    }

    /// Reads an environment with its versions.
    ///
    /// # Errors
    ///
    /// Fails if there is none of this name.
    pub async fn environment(&self, name: &EnvironmentName) -> Result<Environment, ClientError> {
        let (_, found) = self.bus().buckets().get::<Environment>(name).await?;
        let found = found.filter(|environment| !environment.versions.is_empty());
        Ok(found.ok_or_else(|| EnvironmentFault::Unknown(name.clone()))?)
    }

    /// Adds a version to an environment, which may be new; it waits for approval. Returns the environment and the number.
    ///
    /// # Errors
    ///
    /// Fails if there are too many environments or versions, or the name of the author is invalid.
    pub async fn propose_environment(
        &self,
        name: &EnvironmentName,
        definition: EnvironmentDefinition,
        by: Option<String>,
    ) -> Result<(Environment, u32), ClientError> {
        let proposed = self.author(by)?;
        let buckets = self.bus().buckets();
        if buckets.get::<Environment>(name).await?.1.is_none() {
            environments::check_count(buckets.all::<Environment>().await?.len())?;
        }
        self.change_environment(name, |known| {
            environments::propose(known, name, definition.clone(), proposed.clone())
        })
        .await
    }

    /// Approves a version, or the newest that waits for it; the service `cas` then makes its image. Returns the
    /// environment and the number of the version.
    ///
    /// # Errors
    ///
    /// Fails if that version does not wait for approval.
    pub async fn approve_environment(
        &self,
        name: &EnvironmentName,
        number: Option<u32>,
        by: Option<String>,
    ) -> Result<(Environment, u32), ClientError> {
        let (approved, build) = (self.author(by)?, BuildId::generate());
        self.change_environment(name, |known| {
            let mut environment = known.ok_or_else(|| EnvironmentFault::Unknown(name.clone()))?;
            let number = environments::approve(&mut environment, number, build, approved.clone())?;
            Ok((environment, number))
        })
        .await
    }

    /// Removes a version, or all.
    ///
    /// # Errors
    ///
    /// Fails if there is no such version.
    pub async fn remove_environment(
        &self,
        name: &EnvironmentName,
        number: Option<u32>,
    ) -> Result<Environment, ClientError> {
        let (environment, ()) = self
            .change_environment(name, |known| {
                let known = known.filter(|environment| !environment.versions.is_empty());
                let mut environment = known.ok_or_else(|| EnvironmentFault::Unknown(name.clone()))?;
                environments::remove(&mut environment, number)?;
                Ok((environment, ()))
            })
            .await?;
        Ok(environment)
    }

    /// Records what was made of an approved version. Returns whether it changed the version, which may have been removed.
    ///
    /// # Errors
    ///
    /// Fails if the bus does not answer.
    pub async fn finish_environment(
        &self,
        name: &EnvironmentName,
        (number, build): (u32, Option<BuildId>),
        outcome: &Outcome,
    ) -> Result<bool, ClientError> {
        let (_, finished) = self
            .change_environment(name, |known| {
                let mut environment = known.ok_or_else(|| EnvironmentFault::Unknown(name.clone()))?;
                let finished = environments::finish(&mut environment, number, build, outcome.clone());
                Ok((environment, finished))
            })
            .await?;
        Ok(finished)
    }

    fn author(&self, by: Option<String>) -> Result<EnvironmentChange, ClientError> {
        Ok(environments::change(self.bus().now(), by)?)
    }

    /// Reads, changes and writes an environment until no other write came between.
    async fn change_environment<R>(
        &self,
        name: &EnvironmentName,
        change: impl Fn(Option<Environment>) -> Result<(Environment, R), EnvironmentFault>,
    ) -> Result<(Environment, R), ClientError> {
        let buckets = self.bus().buckets();
        loop {
            let (at, known) = buckets.get::<Environment>(name).await?;
            let (environment, result) = change(known.clone())?;
            if known.as_ref() == Some(&environment)
                || buckets.compare_and_set(name, &environment, at, PATIENCE).await?
            {
                return Ok((environment, result));
            }
        }
    }
}

impl From<EnvironmentFault> for ClientError {
    fn from(fault: EnvironmentFault) -> Self {
        let code = match &fault {
            EnvironmentFault::Unknown(_) | EnvironmentFault::UnknownVersion { .. } => ErrorCode::NotFound,
            EnvironmentFault::NotProposed { .. } | EnvironmentFault::NothingProposed(_) => {
                ErrorCode::Conflict
            }
            EnvironmentFault::TooMany(_) | EnvironmentFault::TooManyNames | EnvironmentFault::Author => {
                ErrorCode::InvalidRequest
            }
        };
        Self::api(code, fault.to_string())
    }
}
