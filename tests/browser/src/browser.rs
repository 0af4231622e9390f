//! One window of a real browser.

use std::{fs, path::PathBuf, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use reqwest::Url;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::{
    driver::Driver,
    webdriver::{By, DriverError, Element, Session},
};

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
    web: Session,
    base: String,
    _driver: Driver,
    _profile: TempDir,
}

/// Time in which a page must show something.
const SOON: Duration = Duration::from_secs(20);
/// Pause between two looks at a page.
const PAUSE: Duration = Duration::from_millis(50);

impl Browser {
    /// Starts a browser for the pages at `base`.
    pub async fn start(base: &str, look: Look) -> Self {
        // reqwest has no provider of its own here; a second one is refused.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let profile = tempfile::tempdir().expect("a folder for the profile");
        let driver = Driver::start(profile.path());
        let web = Session::start(&driver.url(), capabilities(&profile, look)).await.expect("a browser");
        let browser = Self { web, base: base.to_owned(), _driver: driver, _profile: profile };
        if look.width > 0 {
            let size = json!({ "width": look.width, "height": 800, "deviceScaleFactor": 1, "mobile": true });
            browser.web.tool("Emulation.setDeviceMetricsOverride", size).await.expect("a size");
        }
        if look.no_script {
            let off = json!({ "value": true });
            browser.web.tool("Emulation.setScriptExecutionDisabled", off).await.expect("no scripts");
        }
        browser
    }

    /// Opens a page of the farm.
    pub async fn open(&self, path: &str) {
        self.goto(&format!("{}{path}", self.base)).await;
    }

    /// Opens an address that may be of another server.
    pub async fn goto(&self, url: &str) {
        self.web.goto(url).await.expect("the page to load");
    }

    /// The address of the page.
    pub async fn current_url(&self) -> Url {
        self.web.current_url().await.expect("the address of the page")
    }

    /// The page as HTML.
    pub async fn source(&self) -> String {
        self.web.source().await.expect("the source of the page")
    }

    /// Runs a script in the page and returns its result. Works only with scripts.
    pub async fn run(&self, script: &str) -> Value {
        self.web.execute(script).await.expect("the script to run")
    }

    /// Runs a script in the page, and returns what it gives to the function `arguments[0]`.
    pub async fn answer(&self, script: &str) -> Value {
        self.web.execute_async(script).await.expect("the script to answer")
    }

    /// The text of the page.
    pub async fn text(&self) -> String {
        self.element("body").await.text().await.expect("the text of the page")
    }

    /// Waits for an element.
    pub async fn element(&self, selector: &str) -> Element {
        match self.wait(&By::Css(selector.to_owned())).await {
            Ok(element) => element,
            Err(error) => panic!("{selector}: {error}\n{}", self.web.source().await.unwrap_or_default()),
        }
    }

    async fn wait(&self, what: &By) -> Result<Element, DriverError> {
        let end = Instant::now() + SOON;
        loop {
            let found = self.web.find(what).await;
            if found.is_ok() || Instant::now() > end {
                return found;
            }
            sleep(PAUSE).await;
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
        let end = Instant::now() + SOON;
        loop {
            // A page that is being left has no body.
            let shown = match self.web.find(&By::Css("body".to_owned())).await {
                Ok(body) => body.text().await.unwrap_or_default(),
                Err(_) => String::new(),
            };
            if holds(&shown).await {
                return;
            }
            assert!(Instant::now() < end, "waited for {what}: {shown}");
            sleep(PAUSE).await;
        }
    }

    /// Waits until a script in the page returns true.
    pub async fn holds(&self, script: &str) {
        let end = Instant::now() + SOON;
        while self.run(script).await != Value::Bool(true) {
            assert!(Instant::now() < end, "waited for {script}: {}", self.text().await);
            sleep(PAUSE).await;
        }
    }

    /// Clicks the first link, button or summary with this text.
    pub async fn click(&self, text: &str) {
        let path =
            format!("//*[self::a or self::button or self::summary][normalize-space()={}]", literal(text));
        self.press(&By::XPath(path)).await;
    }

    /// Clicks the first element that matches a selector of CSS.
    pub async fn click_on(&self, selector: &str) {
        self.press(&By::Css(selector.to_owned())).await;
    }

    /// A part of a live page may be replaced between the search and the click: then it is searched again.
    async fn press(&self, what: &By) {
        let end = Instant::now() + SOON;
        loop {
            let found = self.wait(what).await;
            let found = found.unwrap_or_else(|error| panic!("{what:?} to click: {error}"));
            match found.click().await {
                Ok(()) => return,
                Err(error) => {
                    assert!(Instant::now() < end, "{what:?} cannot be clicked: {error}");
                }
            }
        }
    }

    /// Fails if the page logged an error or is wider than its window.
    pub async fn is_sound(&self, page: &str) {
        let errors = self.web.log().await.expect("the log of the browser");
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
        assert_eq!(self.answer(check).await, json!([]), "{page}");
    }

    /// Keeps a picture of the page in `target/screenshots`.
    pub async fn keep_picture(&self, name: &str) {
        let folder: PathBuf = farm::repository().join("target/screenshots");
        fs::create_dir_all(&folder).expect("a folder for pictures");
        let picture = self.web.screenshot().await.expect("a picture");
        let picture = STANDARD.decode(picture).expect("a picture in base64");
        fs::write(folder.join(format!("{name}.png")), picture).expect("a picture to be written");
    }

    /// Ends the browser and its processes.
    pub async fn quit(self) {
        self.web.quit().await.expect("the browser to end");
    }
}

fn capabilities(profile: &TempDir, look: Look) -> Value {
    let mut arguments = vec![
        "--headless=new".to_owned(),
        "--no-sandbox".to_owned(),
        "--disable-dev-shm-usage".to_owned(),
        "--disable-gpu".to_owned(),
        "--hide-scrollbars".to_owned(),
        "--window-size=1280,900".to_owned(),
        // A name of another site that leads here.
        "--host-resolver-rules=MAP rebound.example.com 127.0.0.1".to_owned(),
        format!("--user-data-dir={}", profile.path().display()),
    ];
    if look.dark {
        arguments.push("--blink-settings=preferredColorScheme=0".to_owned());
    }
    json!({
        "browserName": "chrome",
        "goog:chromeOptions": { "binary": farm::tool("chromium"), "args": arguments },
        "goog:loggingPrefs": { "browser": "WARNING" },
    })
}

/// A text as a literal of `XPath`.
fn literal(text: &str) -> String {
    if text.contains('\'') { format!("\"{text}\"") } else { format!("'{text}'") }
}
