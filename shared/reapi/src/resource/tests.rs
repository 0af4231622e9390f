use proptest::prelude::*;

use super::*;

const HASH: &str = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";

fn digest(function: DigestFunction) -> BlobDigest {
    BlobDigest::from_parts(function, HASH, 3).unwrap()
}

fn blob(instance: &str, function: DigestFunction, compressor: Compressor) -> BlobName {
    BlobName { instance: instance.into(), digest: digest(function), compressor }
}

#[test]
fn names_to_read() {
    let sha = |instance| ReadName::Blob(blob(instance, DigestFunction::Sha256, Compressor::Identity));
    assert_eq!(ReadName::parse(&format!("blobs/{HASH}/3")), Ok(sha("")));
    assert_eq!(ReadName::parse(&format!("a/b/c/blobs/{HASH}/3")), Ok(sha("a/b/c")));
    assert_eq!(ReadName::parse(&format!("logstreams/blobs/{HASH}/3")), Ok(sha("logstreams")));
    assert_eq!(
        ReadName::parse(&format!("main/compressed-blobs/zstd/blake3/{HASH}/3")),
        Ok(ReadName::Blob(blob("main", DigestFunction::Blake3, Compressor::Zstd)))
    );
    assert_eq!(
        ReadName::parse("main/logstreams/7"),
        Ok(ReadName::Log { parent: "main".into(), id: "7".into() })
    );
}

#[test]
fn names_to_write() {
    let name = |instance| WriteName::Blob {
        blob: blob(instance, DigestFunction::Sha256, Compressor::Identity),
        uuid: "u".into(),
    };
    for tail in ["", "/", "/file.o", "/a/b/blobs/uploads", "//"] {
        assert_eq!(WriteName::parse(&format!("a/b/uploads/u/blobs/{HASH}/3{tail}")), Ok(name("a/b")));
    }
    assert_eq!(
        WriteName::parse(&format!("uploads/u/compressed-blobs/zstd/blake3/{HASH}/3/x")),
        Ok(WriteName::Blob { blob: blob("", DigestFunction::Blake3, Compressor::Zstd), uuid: "u".into() })
    );
    let log = WriteName::Log { parent: String::new(), id: "7".into(), token: "secret".into() };
    assert_eq!(WriteName::parse("logstreams/7/secret"), Ok(log));
}

#[test]
fn what_is_no_name_to_read() {
    let upper = HASH.to_uppercase();
    for bad in [
        "",
        "/",
        "nothing",
        "blobs",
        "blobs/",
        &format!("/blobs/{HASH}/3"),
        &format!("a//blobs/{HASH}/3"),
        &format!("../blobs/{HASH}/3"),
        &format!("blobs/{HASH}"),
        &format!("blobs/{HASH}/"),
        &format!("blobs/{HASH}/-3"),
        &format!("blobs/{HASH}/+3"),
        &format!("blobs/{HASH}/03"),
        &format!("blobs/{HASH}/3x"),
        &format!("blobs/{HASH}/99999999999999999999"),
        &format!("blobs/{HASH}/3/extra"),
        &format!("blobs/{HASH}/3/"),
        &format!("blobs/{upper}/3"),
        &format!("blobs/{}/3", &HASH[1..]),
        &format!("blobs/sha256/{HASH}/3"),
        &format!("blobs/sha1/{HASH}/3"),
        &format!("compressed-blobs/{HASH}/3"),
        &format!("compressed-blobs/identity/{HASH}/3"),
        &format!("compressed-blobs/deflate/{HASH}/3"),
        &format!("uploads/u/blobs/{HASH}/3"),
        &format!("actions/blobs/{HASH}/3"),
        "logstreams",
        "logstreams/",
        "logstreams/7/secret",
        "logstreams/7/secret/more",
    ] {
        let error = ReadName::parse(bad).expect_err(bad);
        assert_eq!(Status::from(error).code(), tonic::Code::InvalidArgument, "{bad:?}");
    }
}

#[test]
fn what_is_no_name_to_write() {
    for bad in [
        "",
        "uploads",
        "uploads/u",
        &format!("blobs/{HASH}/3"),
        &format!("uploads//blobs/{HASH}/3"),
        &format!("uploads/u/{HASH}/3"),
        &format!("uploads/u/x/blobs/{HASH}/3"),
        &format!("uploads/u/blobs/{HASH}"),
        &format!("uploads/u/blobs/sha256/{HASH}/3"),
        &format!("uploads/u/compressed-blobs/identity/{HASH}/3"),
        &format!("a/../uploads/u/blobs/{HASH}/3"),
        "logstreams/7",
        "logstreams/7/",
        "logstreams/7/secret/more",
    ] {
        let error = WriteName::parse(bad).expect_err(bad);
        assert_eq!(Status::from(error).code(), tonic::Code::InvalidArgument, "{bad:?}");
    }
}

fn instances() -> impl Strategy<Value = String> {
    let segment = "[a-zA-Z0-9._-]{1,10}"
        .prop_filter("not a keyword of resource names", |s| instance::check(s).is_ok() && s != "logstreams");
    proptest::collection::vec(segment, 0..4).prop_map(|segments| segments.join("/"))
}

fn blobs() -> impl Strategy<Value = BlobName> {
    let function = prop_oneof![Just(DigestFunction::Sha256), Just(DigestFunction::Blake3)];
    let compressor = prop_oneof![Just(Compressor::Identity), Just(Compressor::Zstd)];
    let size = 0..=i64::MAX.cast_unsigned();
    (instances(), function, any::<[u8; 32]>(), size, compressor).prop_map(
        |(instance, function, hash, size, compressor)| BlobName {
            instance,
            digest: BlobDigest { function, hash, size },
            compressor,
        },
    )
}

/// Texts made of the grammar's keywords in any order: nearly valid more often than random texts.
fn soup() -> impl Strategy<Value = String> {
    let hash: &'static str = HASH;
    let piece = prop_oneof![
        prop::sample::select(vec![
            "blobs",
            "compressed-blobs",
            "uploads",
            "logstreams",
            "zstd",
            "identity",
            "deflate",
            "blake3",
            "sha256",
            "operations",
            "",
            "..",
            "3",
            "0",
            "-1",
            hash,
            "é",
            "\u{0}",
            "a",
        ])
        .prop_map(str::to_owned),
        "\\PC{0,6}",
    ];
    proptest::collection::vec(piece, 0..9).prop_map(|pieces| pieces.join("/"))
}

proptest! {
    #[test]
    fn a_name_to_read_reads_as_written(blob in blobs()) {
        let name = ReadName::Blob(blob);
        prop_assert_eq!(ReadName::parse(&name.to_string()), Ok(name));
    }

    #[test]
    fn a_name_to_write_reads_as_written(blob in blobs(), uuid in "[a-z0-9-]{1,36}", tail in "(/[a-z]{0,5}){0,3}") {
        let name = WriteName::Blob { blob, uuid };
        prop_assert_eq!(WriteName::parse(&format!("{name}{tail}")), Ok(name));
    }

    #[test]
    fn a_log_name_reads_as_written(parent in instances(), id in "[a-z0-9.:-]{1,20}", token in "[a-z0-9]{1,20}") {
        let read = ReadName::Log { parent: parent.clone(), id: id.clone() };
        prop_assert_eq!(ReadName::parse(&read.to_string()), Ok(read));
        let write = WriteName::Log { parent, id, token };
        prop_assert_eq!(WriteName::parse(&write.to_string()), Ok(write));
    }

    #[test]
    fn whatever_is_taken_is_written_the_same_way(text in soup()) {
        if let Ok(name) = ReadName::parse(&text) {
            prop_assert_eq!(name.to_string(), text.clone());
        }
        if let Ok(name) = WriteName::parse(&text) {
            prop_assert!(text.starts_with(&name.to_string()));
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in any::<String>()) {
        let _ = (ReadName::parse(&text), WriteName::parse(&text));
    }
}
