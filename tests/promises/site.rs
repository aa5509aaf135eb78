//! The guide as a site, in a real browser: every page opens without an error and with all that it refers to,
//! light and dark; every link within it leads to a page and a place that exist; the search finds something.

pub(crate) mod browser;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use vmlane_tests::alone::{output, vmlane};
use vmlane_tests::{kept, tree};

use browser::Browser;

vmlane_tests::tests! {
    long { every_page_opens_in_a_browser_light_and_dark }
}

/// What the test wants to know of a page.
const INSPECT: &str = r"(() => {
  const rgb = color => color.match(/[\d.]+/g).slice(0, 3).map(Number);
  const light = color => rgb(color).map(c => c / 255).map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const text = light(getComputedStyle(document.querySelector('main :is(p, pre, td)') ?? document.querySelector('main')).color);
  let ground = document.querySelector('main');
  while (getComputedStyle(ground).backgroundColor === 'rgba(0, 0, 0, 0)') ground = ground.parentElement;
  const behind = light(getComputedStyle(ground).backgroundColor);
  return {
    text: document.querySelector('main').innerText.length,
    ids: [...document.querySelectorAll('[id]')].map(e => e.id),
    links: [...document.querySelectorAll('a[href]')].map(e => e.href),
    blank: [...document.images].filter(i => !i.complete || i.naturalWidth === 0).map(i => i.src),
    background: behind,
    contrast: (Math.max(text, behind) + 0.05) / (Math.min(text, behind) + 0.05),
  };
})()";

const SEARCH: &str = r"new Promise(done => {
  document.getElementById('mdbook-search-toggle').click();
  const bar = document.getElementById('mdbook-searchbar');
  bar.value = 'port group';
  bar.dispatchEvent(new Event('keyup', {bubbles: true}));
  bar.dispatchEvent(new Event('input', {bubbles: true}));
  const look = tries => {
    const found = document.querySelectorAll('#mdbook-searchresults a').length;
    found || !tries ? done(found) : setTimeout(look, 100, tries - 1);
  };
  look(300);
})";

fn strings(list: &Value) -> Vec<String> {
    list.as_array().expect("a list").iter().map(|text| text.as_str().expect("text").to_owned()).collect()
}

fn every_page_opens_in_a_browser_light_and_dark() {
    let mut make = Command::new(tree::root().join("scripts/docs.sh"));
    output(make.env("VMLANE_BIN", vmlane().get_program()));
    let site = tree::root().join("out/docs");
    let mut pages: Vec<PathBuf> = tree::files(&site, "html");
    pages.retain(|page| !page.ends_with("toc.html"));
    assert!(pages.len() > 30 && pages.contains(&site.join("index.html")), "{pages:?}");

    let mut browser = Browser::start();
    let mut wrong = Vec::new();
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut links = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        for page in &pages {
            let url = format!("file://{}", page.display());
            wrong.extend(browser.open(&url).into_iter().map(|what| format!("{url} ({scheme}): {what}")));
            let seen = browser.evaluate(INSPECT);
            let number = |key: &str| seen[key].as_f64().expect("a number");
            let is_light = number("background") > 0.5;
            if is_light != (scheme == "light") || number("contrast") < 4.5 || number("text") < 100.0 {
                wrong.push(format!(
                    "{url}: {scheme}, but {} {} {}",
                    seen["background"], seen["contrast"], seen["text"]
                ));
            }
            wrong.extend(strings(&seen["blank"]).into_iter().map(|image| format!("{url}: image {image}")));
            if scheme == "light" {
                places.insert(url.clone(), strings(&seen["ids"]).into_iter().collect());
                links.extend(strings(&seen["links"]).into_iter().map(|link| (url.clone(), link)));
            }
        }
    }
    let mut followed = 0;
    for (page, link) in links.iter().filter(|(_, link)| link.starts_with("file:")) {
        followed += 1;
        let (target, place) = link.split_once('#').unwrap_or((link, ""));
        let exists = match places.get(target) {
            Some(ids) => place.is_empty() || ids.contains(place),
            None => Path::new(target.trim_start_matches("file://")).is_file(),
        };
        if !exists {
            wrong.push(format!("{page}: {link} leads nowhere"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(followed > 1000, "{followed}");

    browser.open(&format!("file://{}", site.join("index.html").display()));
    let found = browser.evaluate(SEARCH);
    assert!(found.as_u64().is_some_and(|found| found > 3), "the search found {found}");
    kept(
        "guide",
        &format!(
            "{} pages of the guide open in a browser, light and dark; {followed} links lead somewhere",
            pages.len()
        ),
    );
}
