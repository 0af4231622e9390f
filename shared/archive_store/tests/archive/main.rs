//! The archive on real databases.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests fail by panicking")]

/// Runs the same test on both databases.
macro_rules! on_both {
    ($($name:ident,)*) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Database::sqlite()).await;
            })*
        }
        mod postgres {
            $(#[tokio::test]
            async fn $name() {
                let Some(database) = super::Database::postgres() else { return };
                super::$name(database).await;
            })*
        }
    };
}

mod audit;
mod consoles;
mod databases;
mod facts;
mod faults;
mod messages;
mod redelivery;
mod retention;
mod tools;
