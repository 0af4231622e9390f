//! When a certificate ends.

use der::{
    AnyRef, Decode as _, Result, SliceReader, Tag, Tagged as _,
    asn1::{GeneralizedTime, UtcTime},
};

/// The end of the validity of a certificate in DER, in seconds since 1970.
pub(super) fn certificate_end(certificate: &[u8]) -> Result<u64> {
    let part = |reader: &mut SliceReader<'_>| AnyRef::decode(reader).map(|_| ());
    let whole = AnyRef::from_der(certificate)?;
    let signed = AnyRef::decode(&mut SliceReader::new(whole.value())?)?;
    // A version that is not the default one, serial number, algorithm, issuer, validity, and more.
    let mut fields = SliceReader::new(signed.value())?;
    if AnyRef::decode(&mut fields)?.tag().is_context_specific() {
        part(&mut fields)?;
    }
    part(&mut fields)?;
    part(&mut fields)?;
    let validity = AnyRef::decode(&mut fields)?;
    let mut times = SliceReader::new(validity.value())?;
    part(&mut times)?;
    let end = AnyRef::decode(&mut times)?;
    let end = if end.tag() == Tag::UtcTime {
        end.decode_as::<UtcTime>()?.to_unix_duration()
    } else {
        end.decode_as::<GeneralizedTime>()?.to_unix_duration()
    };
    Ok(end.as_secs())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::OffsetDateTime;

    use super::certificate_end;

    fn certificate(end: i64) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = OffsetDateTime::UNIX_EPOCH;
        params.not_after = OffsetDateTime::from_unix_timestamp(end).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn certificates_end_when_they_were_made_to() {
        // From 2050 on, years have four digits.
        for end in [1, 951_782_399, 1_795_910_400, 2_524_607_999, 2_524_608_000, 253_402_300_799] {
            assert_eq!(certificate_end(&certificate(end)), Ok(end.unsigned_abs()));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = certificate_end(&bytes);
        }

        #[test]
        fn a_broken_certificate_is_read_or_refused(at in any::<prop::sample::Index>(), with: u8, length in 0..400_usize) {
            let mut broken = certificate(1_795_910_400);
            broken.truncate(length);
            if !broken.is_empty() {
                let at = at.index(broken.len());
                broken[at] = with;
            }
            let _ = certificate_end(&broken);
        }
    }
}
