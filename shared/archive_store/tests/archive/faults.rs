//! Databases that are damaged or gone.

use archive_store::{Batch, LogStream};
use model::Millis;

use crate::{
    databases::Database,
    facts::{archive, log},
    messages::START_MS,
    retention::retention,
};

on_both! {
    a_missing_table_is_no_fault_of_the_rows,
    a_question_waits_until_the_writer_has_created_the_tables,
    a_question_before_there_are_tables_says_what_is_missing,
}

async fn a_question_waits_until_the_writer_has_created_the_tables(database: Database) {
    let (asked, writer) = tokio::join!(database.store.status(), async {
        // The question comes first.
        tokio::task::yield_now().await;
        database.store.writer().await.unwrap()
    });
    assert!(asked.unwrap().streams.is_empty());
    drop(writer);
}

async fn a_question_before_there_are_tables_says_what_is_missing(database: Database) {
    let writer = database.store.writer().await.unwrap();
    // As a writer of an earlier version left it.
    database.execute("DELETE FROM _sqlx_migrations WHERE version > 1").await;
    drop(writer);
    let error = database.store.status().await.unwrap_err();
    assert!(error.to_string().contains("no tables of this version yet"), "{error}");
}

async fn a_missing_table_is_no_fault_of_the_rows(database: Database) {
    let mut writer = database.store.writer().await.unwrap();
    let messages = log(2).messages;
    let cursor = archive(&mut writer, &[], 1).await;
    database.execute("DROP TABLE tasks").await;
    let mut batch = Batch::new(LogStream::Events, cursor.base);
    for stored in &messages {
        batch.add(stored);
    }
    let error = writer.commit(&batch, cursor).await.unwrap_err();
    assert!(!error.is_about_rows(), "{error:?}");
    let cursor = writer.cursor(LogStream::Events, Millis(5)).await.unwrap();
    assert_eq!(cursor.position, 0, "nothing of the batch is written");
}

/// Removes the database under its writer, as `rm archive.db*` does.
fn remove(database: &Database) {
    for end in ["", "-wal", "-shm"] {
        let path = format!("{}{end}", database.path().display());
        std::fs::remove_file(path).unwrap();
    }
}

#[tokio::test]
async fn a_file_that_was_removed_is_noticed_and_rebuilt() {
    let database = Database::sqlite();
    let mut writer = database.store.writer().await.unwrap();
    let messages = log(3).messages;
    let (start, rest) = messages.split_at(9);
    let cursor = archive(&mut writer, start, 3).await;
    // Answers have a connection.
    assert_eq!(database.store.status().await.unwrap().streams.len(), 1);
    remove(&database);
    let mut batch = Batch::new(LogStream::Events, cursor.base);
    for stored in rest {
        batch.add(stored);
    }
    let errors = [
        writer.commit(&batch, cursor).await.map(drop).unwrap_err(),
        writer.sweep(&retention(&[]), Millis(START_MS)).await.map(drop).unwrap_err(),
    ];
    let path = database.path().display().to_string();
    assert!(errors.iter().all(|error| error.to_string().contains(&path)), "{errors:?}");
    database.store.status().await.unwrap_err();
    drop(writer);

    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &messages, 100).await;
    let undisturbed = Database::sqlite();
    archive(&mut undisturbed.store.writer().await.unwrap(), &messages, 100).await;
    let wanted = undisturbed.store.content_hashes().await.unwrap();
    assert_eq!(database.store.content_hashes().await.unwrap(), wanted);
}

#[tokio::test]
async fn an_error_of_a_damaged_file_names_it_and_what_to_do() {
    let database = Database::sqlite();
    std::fs::create_dir_all(database.path().parent().unwrap()).unwrap();
    std::fs::write(database.path(), "this is no database, but a text of some length".repeat(100)).unwrap();
    let errors = [
        database.store.writer().await.map(drop).unwrap_err(),
        database.store.status().await.map(drop).unwrap_err(),
    ];
    for error in errors.map(|error| database.store.explain(error).to_string()) {
        assert!(error.contains(database.path().to_str().unwrap()) && error.contains("backup"), "{error}");
    }
}
