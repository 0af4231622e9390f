//! Images that the farm's store has, of no registry.

use cas::{Cas, CasError};
use model::{BlobDigest, Digest};

use crate::{
    error::ImageError,
    manifest::{Descriptor, Document, MANIFEST_BYTES_MAX, of_this_machine, read_config},
};

/// The manifest that an OCI image layout names in its `index.json`.
///
/// Fails if the text is not an index, or has more than one image.
pub fn manifest_of_layout(index: &[u8]) -> Result<BlobDigest, ImageError> {
    let invalid = |why: &dyn std::fmt::Display| {
        ImageError::Invalid(format!("the index.json of its layout cannot be used: {why}"))
    };
    match Document::read(index).map_err(|error| invalid(&error))? {
        Document::Index(images) => match images.as_slice() {
            [image] => Ok(image.blob()),
            images => Err(invalid(&format!("it names {} images, expected one", images.len()))),
        },
        Document::Manifest(_) => Err(invalid(&"it is a manifest")),
    }
}

/// All blobs of an image for this kind of machine: its manifest first, then what it names.
///
/// Fails if one is missing in the store, or invalid.
pub async fn blobs_of_stored(cas: &Cas, manifest: &BlobDigest) -> Result<Vec<BlobDigest>, ImageError> {
    let top = read(cas, manifest).await?;
    let mut blobs = vec![*manifest];
    let document = match Document::read(&top)? {
        Document::Manifest(document) => document,
        Document::Index(manifests) => {
            let of_machine = of_this_machine(&manifests)?.blob();
            blobs.push(of_machine);
            match Document::read(&read(cas, &of_machine).await?)? {
                Document::Manifest(document) => document,
                Document::Index(_) => {
                    return Err(ImageError::Invalid("its index names another index".to_owned()));
                }
            }
        }
    };
    let config = document.config.blob();
    read_config(&read(cas, &config).await?, document.layers.len())?;
    let layers: Vec<BlobDigest> = document.layers.iter().map(Descriptor::blob).collect();
    let missing = cas.missing(&layers).await.map_err(ImageError::Store)?;
    if let Some(missing) = missing.first() {
        return Err(not_stored(missing));
    }
    blobs.push(config);
    for layer in layers {
        if !blobs.contains(&layer) {
            blobs.push(layer);
        }
    }
    Ok(blobs)
}

async fn read(cas: &Cas, blob: &BlobDigest) -> Result<bytes::Bytes, ImageError> {
    let content = cas.read_whole(blob, MANIFEST_BYTES_MAX).await;
    content.map_err(|error| {
        if matches!(error, CasError::NotFound { .. } | CasError::Missing { .. }) {
            return not_stored(blob);
        }
        if error.is_about_content() {
            return ImageError::Invalid(telemetry::error_chain(&error));
        }
        ImageError::Store(error)
    })
}

fn not_stored(blob: &BlobDigest) -> ImageError {
    ImageError::Invalid(format!("the store of the farm does not have its part {}", Digest::of_blob(blob)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_has_one_image() {
        let digest = Digest::of(b"manifest");
        let one = format!(r#"{{"mediaType":"x","digest":"{digest}","size":7}}"#);
        let index = |images: &str| format!(r#"{{"schemaVersion":2,"manifests":[{images}]}}"#).into_bytes();
        assert_eq!(manifest_of_layout(&index(&one)).unwrap(), digest.of_size(7));
        for bad in [index(""), index(&format!("{one},{one}")), b"{}".to_vec(), b"x".to_vec()] {
            let error = manifest_of_layout(&bad).unwrap_err().to_string();
            assert!(error.contains("index.json"), "{error}");
        }
    }
}
