use std::collections::BTreeSet;

use model::ExecutorType;

use crate::Settings;

/// Settings of the service `web`.
#[derive(Debug, Clone)]
pub struct WebSettings {
    pub listen: String,
    pub request_bytes_max: usize,
    pub pages: PageSettings,
}

/// Settings of the pages for browsers.
#[derive(Debug, Clone, Default)]
pub struct PageSettings {
    /// Address of the page of a trace, with `{trace}` in place of the trace id; empty: no links.
    pub trace_page_url: String,
    /// The executor types of the farm.
    pub executor_types: BTreeSet<ExecutorType>,
}

impl Settings {
    pub fn web(&self) -> WebSettings {
        WebSettings {
            listen: self.web_listen.clone(),
            request_bytes_max: self.request_bytes_max,
            pages: self.pages(),
        }
    }

    pub(crate) fn pages(&self) -> PageSettings {
        PageSettings {
            trace_page_url: self.trace_page_url.clone(),
            executor_types: self.executor_types.keys().cloned().collect(),
        }
    }
}
