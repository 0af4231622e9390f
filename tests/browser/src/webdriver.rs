//! The protocol `WebDriver` of W3C, as far as the tests need it, and what chromedriver adds: its log and its developer tools.

use std::fmt;

use reqwest::{Client, Method, Url};
use serde::Deserialize;
use serde_json::{Value, json};

/// Name of the field with the id of an element, which the standard fixes.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A refusal of the driver, or a driver that does not answer.
#[derive(Debug)]
pub struct DriverError(String);

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DriverError {}

impl From<reqwest::Error> for DriverError {
    fn from(error: reqwest::Error) -> Self {
        Self(format!("chromedriver does not answer: {error:?}"))
    }
}

/// How an element is searched.
#[derive(Debug, Clone)]
pub(crate) enum By {
    Css(String),
    XPath(String),
}

/// One window of a browser.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    client: Client,
    /// Address of the session at the driver.
    address: String,
}

/// An element of a page.
#[derive(Debug)]
pub struct Element {
    session: Session,
    id: String,
}

impl Session {
    /// Starts a browser with these capabilities.
    pub(crate) async fn start(driver: &str, capabilities: Value) -> Result<Self, DriverError> {
        // The driver is on this machine.
        let client = Client::builder().no_proxy().build()?;
        let wanted = json!({ "capabilities": { "alwaysMatch": capabilities } });
        let begun = call(&client, Method::POST, &format!("{driver}/session"), Some(wanted)).await?;
        let id = field(&begun, "sessionId")?;
        Ok(Self { address: format!("{driver}/session/{id}"), client })
    }

    /// Ends the browser with all of its processes.
    pub(crate) async fn quit(&self) -> Result<(), DriverError> {
        self.send(Method::DELETE, "", None).await.map(drop)
    }

    pub(crate) async fn goto(&self, url: &str) -> Result<(), DriverError> {
        self.post("/url", json!({ "url": url })).await.map(drop)
    }

    pub(crate) async fn current_url(&self) -> Result<Url, DriverError> {
        let url = text(&self.get("/url").await?)?;
        url.parse().map_err(|error| DriverError(format!("{url}: {error}")))
    }

    pub(crate) async fn source(&self) -> Result<String, DriverError> {
        text(&self.get("/source").await?)
    }

    /// Runs a script, and returns what it returns.
    pub(crate) async fn execute(&self, script: &str) -> Result<Value, DriverError> {
        self.post("/execute/sync", json!({ "script": script, "args": [] })).await
    }

    /// Runs a script, and returns what it gives to the function that is its only argument.
    pub(crate) async fn execute_async(&self, script: &str) -> Result<Value, DriverError> {
        self.post("/execute/async", json!({ "script": script, "args": [] })).await
    }

    /// The first element that is found.
    pub(crate) async fn find(&self, by: &By) -> Result<Element, DriverError> {
        let (using, value) = match by {
            By::Css(selector) => ("css selector", selector),
            By::XPath(path) => ("xpath", path),
        };
        let found = self.post("/element", json!({ "using": using, "value": value })).await?;
        Ok(Element { session: self.clone(), id: field(&found, ELEMENT)? })
    }

    /// A picture of the window as PNG, in base64.
    pub(crate) async fn screenshot(&self) -> Result<String, DriverError> {
        text(&self.get("/screenshot").await?)
    }

    /// What the browser logged since the last call.
    pub(crate) async fn log(&self) -> Result<Vec<String>, DriverError> {
        let entries = self.post("/se/log", json!({ "type": "browser" })).await?;
        let entries = entries.as_array().ok_or_else(|| DriverError(format!("not a log: {entries}")))?;
        entries.iter().map(|entry| field(entry, "message")).collect()
    }

    /// A command of Chromium's developer tools.
    pub(crate) async fn tool(&self, command: &str, parameters: Value) -> Result<Value, DriverError> {
        self.post("/goog/cdp/execute", json!({ "cmd": command, "params": parameters })).await
    }

    async fn get(&self, path: &str) -> Result<Value, DriverError> {
        self.send(Method::GET, path, None).await
    }

    async fn post(&self, path: &str, body: Value) -> Result<Value, DriverError> {
        self.send(Method::POST, path, Some(body)).await
    }

    async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, DriverError> {
        call(&self.client, method, &format!("{}{path}", self.address), body).await
    }
}

impl Element {
    pub async fn click(&self) -> Result<(), DriverError> {
        self.session.post(&self.path("click"), json!({})).await.map(drop)
    }

    /// Types a text. Keys without a character are in the private area of Unicode: the arrow up is `\u{e013}`, Home `\u{e011}`.
    pub async fn send_keys(&self, text: &str) -> Result<(), DriverError> {
        self.session.post(&self.path("value"), json!({ "text": text })).await.map(drop)
    }

    pub async fn text(&self) -> Result<String, DriverError> {
        text(&self.session.get(&self.path("text")).await?)
    }

    fn path(&self, what: &str) -> String {
        format!("/element/{}/{what}", self.id)
    }
}

#[derive(Deserialize)]
struct Answer {
    value: Value,
}

/// Sends a command, and returns its value.
async fn call(client: &Client, method: Method, url: &str, body: Option<Value>) -> Result<Value, DriverError> {
    let mut request = client.request(method, url);
    if let Some(body) = body {
        request = request.header("content-type", "application/json").body(body.to_string());
    }
    let response = request.send().await?;
    let status = response.status();
    let content = response.text().await?;
    let failed = |why: &str| DriverError(format!("{why}: {content}"));
    let answer = serde_json::from_str(&content);
    let Answer { value } = answer.map_err(|_| failed("not an answer of a driver"))?;
    if status.is_success() {
        return Ok(value);
    }
    Err(DriverError(format!("{}: {}", field(&value, "error")?, field(&value, "message")?)))
}

fn text(value: &Value) -> Result<String, DriverError> {
    value.as_str().map(ToOwned::to_owned).ok_or_else(|| DriverError(format!("not a text: {value}")))
}

fn field(value: &Value, name: &str) -> Result<String, DriverError> {
    text(value.get(name).unwrap_or(&Value::Null))
}
