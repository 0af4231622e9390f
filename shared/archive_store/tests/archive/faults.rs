//! Databases that are damaged or gone.

use archive_store::{Batch, LogStream};
use model::Millis;

use crate::{
    databases::Database,
    facts::{archive, log},
};

on_both! {
    a_missing_table_is_no_fault_of_the_rows,
}

async fn a_missing_table_is_no_fault_of_the_rows(database: Database) {
    let mut writer = database.store.writer().await.unwrap();
    let messages = log(2).messages;
    let cursor = archive(&mut writer, &[], 1).await;
    database.execute("DROP TABLE tasks").await;
    let mut batch = Batch::new(LogStream::Events, cursor.base);
    messages.iter().for_each(|stored| batch.add(stored));
    let error = writer.commit(&batch, cursor).await.unwrap_err();
    assert!(!error.is_about_rows(), "{error:?}");
    let cursor = writer.cursor(LogStream::Events, Millis(5)).await.unwrap();
    assert_eq!(cursor.position, 0, "nothing of the batch is written");
}
