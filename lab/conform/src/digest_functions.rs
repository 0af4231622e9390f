//! Digest functions that a server announces.

use model::DigestFunction;
use reapi::execution::{ExecutionCapabilities, ServerCapabilities, digest_function};

/// Returns the digest functions that both the server and this tool support.
pub(crate) fn functions(capabilities: &ServerCapabilities) -> Vec<DigestFunction> {
    let announced = match (&capabilities.cache_capabilities, &capabilities.execution_capabilities) {
        (Some(cache), _) => cache.digest_functions.clone(),
        (None, Some(execution)) => execution_functions(execution),
        (None, None) => Vec::new(),
    };
    known(&announced)
}

/// Returns the digest functions that the execution capabilities announce.
pub(crate) fn execution_functions(execution: &ExecutionCapabilities) -> Vec<i32> {
    if execution.digest_functions.is_empty() {
        vec![execution.digest_function]
    } else {
        execution.digest_functions.clone()
    }
}

/// Returns the announced digest functions that this tool supports.
pub(crate) fn known(announced: &[i32]) -> Vec<DigestFunction> {
    let value = |function| match function {
        DigestFunction::Sha256 => i32::from(digest_function::Value::Sha256),
        DigestFunction::Blake3 => digest_function::Value::Blake3.into(),
    };
    DigestFunction::ALL.into_iter().filter(|function| announced.contains(&value(*function))).collect()
}
