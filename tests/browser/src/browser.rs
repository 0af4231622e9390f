//! One window of a real browser.

use std::{fs, mem::ManuallyDrop, ops::Deref, path::PathBuf, time::Duration};

use serde_json::{Value, json};
use tempfile::TempDir;
use thirtyfour::{ChromeCapabilities, LoggingPrefsLogLevel, prelude::*};

use crate::driver::Driver;

/// How a browser shows pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Look {
    pub dark: bool,
    /// Width of the window in pixels; 0: 1280.
    pub width: u32,
    /// Whether scripts are off.
    pub no_script: bool,
}

impl Look {
    pub const DARK: Self = Self { dark: true, width: 0, no_script: false };
    pub const PHONE: Self = Self { dark: false, width: 360, no_script: false };
    pub const NO_SCRIPT: Self = Self { dark: false, width: 0, no_script: true };
}

/// A browser with one window. Dropping it ends it.
#[derive(Debug)]
pub struct Browser {
    /// Never dropped: that would wait for an answer of a browser that is gone.
    web: ManuallyDrop<WebDriver>,
    base: String,
    _driver: Driver,
    _profile: TempDir,
}

/// Time in which a page must show something.
const SOON: Duration = Duration::from_secs(20);

impl Browser {
    /// Starts a browser for the pages at `base`.
    pub async fn start(base: &str, look: Look) -> Self {
        // reqwest has no provider of its own here; a second one is refused.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let profile = tempfile::tempdir().expect("a folder for the profile");
        let driver = Driver::start(profile.path());
        let web = WebDriver::new(driver.url(), capabilities(&profile, look)).await.expect("a browser");
        let browser =
            Self { web: ManuallyDrop::new(web), base: base.to_owned(), _driver: driver, _profile: profile };
        if look.width > 0 {
            let size = json!({ "width": look.width, "height": 800, "deviceScaleFactor": 1, "mobile": true });
            browser.web.cdp().send_raw("Emulation.setDeviceMetricsOverride", size).await.expect("a size");
        }
        if look.no_script {
            let off = json!({ "value": true });
            browser
                .web
                .cdp()
                .send_raw("Emulation.setScriptExecutionDisabled", off)
                .await
                .expect("no scripts");
        }
        browser
    }

    /// Opens a page of the farm.
    pub async fn open(&self, path: &str) {
        self.web.goto(format!("{}{path}", self.base)).await.expect("the page to load");
    }

    /// Runs a script in the page and returns its result. Works only with scripts.
    pub async fn run(&self, script: &str) -> Value {
        self.web.execute(script, Vec::new()).await.expect("the script to run").json().clone()
    }

    /// The text of the page.
    pub async fn text(&self) -> String {
        self.element("body").await.text().await.expect("the text of the page")
    }

    /// Waits for an element.
    pub async fn element(&self, selector: &str) -> WebElement {
        let found = self.web.query(By::Css(selector)).wait(SOON, Duration::from_millis(50)).first().await;
        match found {
            Ok(element) => element,
            Err(error) => panic!("{selector}: {error}\n{}", self.web.source().await.unwrap_or_default()),
        }
    }

    /// Waits until the page shows a text.
    pub async fn shows(&self, text: &str) {
        self.until(&format!("the page to show {text:?}"), async |shown| shown.contains(text)).await;
    }

    /// Waits until the page no longer shows a text.
    pub async fn hides(&self, text: &str) {
        self.until(&format!("the page to hide {text:?}"), async |shown| !shown.contains(text)).await;
    }

    async fn until(&self, what: &str, mut holds: impl AsyncFnMut(&str) -> bool) {
        let end = tokio::time::Instant::now() + SOON;
        loop {
            // A page that is being left has no body.
            let shown = match self.web.find(By::Css("body")).await {
                Ok(body) => body.text().await.unwrap_or_default(),
                Err(_) => String::new(),
            };
            if holds(&shown).await {
                return;
            }
            assert!(tokio::time::Instant::now() < end, "waited for {what}: {shown}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until a script in the page returns true.
    pub async fn holds(&self, script: &str) {
        let end = tokio::time::Instant::now() + SOON;
        while self.run(script).await != Value::Bool(true) {
            assert!(tokio::time::Instant::now() < end, "waited for {script}: {}", self.text().await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Clicks the first link, button or summary with this text.
    pub async fn click(&self, text: &str) {
        let path =
            format!("//*[self::a or self::button or self::summary][normalize-space()={}]", literal(text));
        self.press(By::XPath(path)).await;
    }

    /// Clicks the first element that matches a selector of CSS.
    pub async fn click_on(&self, selector: &str) {
        self.press(By::Css(selector)).await;
    }

    /// A part of a live page may be replaced between the search and the click: then it is searched again.
    async fn press(&self, what: By) {
        let end = tokio::time::Instant::now() + SOON;
        loop {
            let found = self.web.query(what.clone()).wait(SOON, Duration::from_millis(50)).first().await;
            let found = found.unwrap_or_else(|error| panic!("{what:?} to click: {error}"));
            match found.click().await {
                Ok(()) => return,
                Err(error) => {
                    assert!(tokio::time::Instant::now() < end, "{what:?} cannot be clicked: {error}");
                }
            }
        }
    }

    /// Fails if the page logged an error or is wider than its window.
    pub async fn is_sound(&self, page: &str) {
        let logged = self.web.browser_log().await.expect("the log of the browser");
        let errors: Vec<String> = logged.into_iter().map(|entry| entry.message).collect();
        assert!(errors.is_empty(), "{page}: {errors:?}");
    }

    /// Fails if the page is wider than its window.
    pub async fn fits(&self, page: &str) {
        let wider = self.run("return document.documentElement.scrollWidth - innerWidth").await;
        assert!(wider.as_i64().is_some_and(|pixels| pixels <= 0), "{page} is {wider} pixels too wide");
    }

    /// Fails if axe-core finds a violation of WCAG 2.2 A or AA.
    pub async fn is_accessible(&self, page: &str) {
        let axe = fs::read_to_string(farm::repository().join(".tools/axe/axe.min.js"))
            .expect("axe: run `make clients`");
        self.run(&axe).await;
        let check = "const done = arguments[0]; axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] })\
            .then(found => done(found.violations.map(it => `${it.id}: ${it.nodes[0].html} ${it.nodes[0].failureSummary}`)))";
        let found = self.web.execute_async(check, Vec::new()).await.expect("axe to run");
        assert_eq!(found.json(), &json!([]), "{page}");
    }

    /// Keeps a picture of the page in `target/screenshots`.
    pub async fn keep_picture(&self, name: &str) {
        let folder: PathBuf = farm::repository().join("target/screenshots");
        fs::create_dir_all(&folder).expect("a folder for pictures");
        let picture = self.web.screenshot_as_png().await.expect("a picture");
        fs::write(folder.join(format!("{name}.png")), picture).expect("a picture to be written");
    }

    /// Ends the browser and its processes.
    pub async fn quit(self) -> Result<(), WebDriverError> {
        WebDriver::clone(&self.web).quit().await
    }
}

impl Deref for Browser {
    type Target = WebDriver;

    fn deref(&self) -> &WebDriver {
        &self.web
    }
}

fn capabilities(profile: &TempDir, look: Look) -> ChromeCapabilities {
    let mut wanted = DesiredCapabilities::chrome();
    let profile = format!("--user-data-dir={}", profile.path().display());
    let mut arguments = vec![
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--hide-scrollbars",
        "--window-size=1280,900",
        // A name of another site that leads here.
        "--host-resolver-rules=MAP rebound.example.com 127.0.0.1",
        profile.as_str(),
    ];
    if look.dark {
        arguments.push("--blink-settings=preferredColorScheme=0");
    }
    for argument in arguments {
        wanted.add_arg(argument).expect("an argument");
    }
    let binary = farm::tool("chromium").display().to_string();
    wanted.set_binary(&binary).expect("the path of Chromium");
    wanted.set_browser_log_level(LoggingPrefsLogLevel::Warning).expect("a level of the log");
    wanted
}

/// A text as a literal of `XPath`.
fn literal(text: &str) -> String {
    if text.contains('\'') { format!("\"{text}\"") } else { format!("'{text}'") }
}
