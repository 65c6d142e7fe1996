//! What a load run has seen so far: counts, latencies, the first error.
//!
//! State: one `Tally` a reactor, behind a mutex that is never held across a wait. Thread class: any thread.

use hdrhistogram::Histogram;
use std::fmt;
use std::io;
use std::time::Duration;

/// Latencies are told apart from 1 us to 1 min, to three digits.
const LONGEST_US: u64 = 60_000_000;

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Answers with a status of 2xx.
    pub good: u64,
    /// Other answers.
    pub other: u64,
    /// Connections that were made.
    pub connections: u64,
    /// Attempts to connect that failed.
    pub refused: u64,
    /// Connections that ended with answers outstanding.
    pub cut: u64,
    /// What the first of those errors said.
    pub first_error: Option<String>,
    latency: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        let latency =
            Histogram::new_with_bounds(1, LONGEST_US, 3).expect("the bounds are in order, 3 digits are legal");
        Self { good: 0, other: 0, connections: 0, refused: 0, cut: 0, first_error: None, latency }
    }
}

impl Tally {
    /// An answer came, so long after its request.
    pub fn answered(&mut self, status: u16, after: Duration) {
        if (200..300).contains(&status) {
            self.good += 1;
        } else {
            self.other += 1;
        }
        self.latency.saturating_record(u64::try_from(after.as_micros()).unwrap_or(LONGEST_US).max(1));
    }

    /// Something failed; counted by the caller.
    pub fn note(&mut self, error: &io::Error) {
        self.first_error.get_or_insert_with(|| error.to_string());
    }

    /// All answers.
    pub fn answers(&self) -> u64 {
        self.good + self.other
    }

    /// Adds another reactor's.
    pub fn add(&mut self, other: &Self) {
        self.good += other.good;
        self.other += other.other;
        self.connections += other.connections;
        self.refused += other.refused;
        self.cut += other.cut;
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
        self.latency.add(&other.latency).expect("all histograms have the same bounds");
    }

    /// The table at the end.
    pub fn summary(&self, took: Duration) -> Summary<'_> {
        Summary { tally: self, took }
    }
}

/// See [`Tally::summary`].
#[derive(Debug)]
pub struct Summary<'a> {
    tally: &'a Tally,
    took: Duration,
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { good, other, connections, refused, cut, first_error, latency } = self.tally;
        let rate = self.tally.answers() as f64 / self.took.as_secs_f64().max(0.001);
        writeln!(f, "answers      {good} of status 2xx, {other} others, {rate:.0} requests/s over {:.2?}", self.took)?;
        write!(f, "connections  {connections} made, {refused} refused, {cut} cut with answers outstanding")?;
        if let Some(error) = first_error {
            write!(f, "\nfirst error  {error}")?;
        }
        if latency.is_empty() {
            return Ok(());
        }
        write!(f, "\nlatency     ")?;
        let at = |quantile| latency.value_at_quantile(quantile) as f64 / 1000.0;
        for (name, ms) in [("p50", at(0.5)), ("p90", at(0.9)), ("p99", at(0.99)), ("p99.9", at(0.999))] {
            write!(f, " {name} {ms:.3} ms,")?;
        }
        write!(f, " max {:.3} ms", latency.max() as f64 / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Tally;
    use std::time::Duration;

    #[test]
    fn tallies_add_up_and_show_their_quantiles() {
        let (mut a, mut b) = (Tally::default(), Tally::default());
        for ms in 1..=100 {
            a.answered(200, Duration::from_millis(ms));
        }
        b.answered(503, Duration::from_secs(3600));
        b.note(&std::io::Error::other("first"));
        b.note(&std::io::Error::other("second"));
        a.add(&b);
        assert_eq!((a.good, a.other, a.answers()), (100, 1, 101));
        let text = a.summary(Duration::from_secs(2)).to_string();
        for part in ["100 of status 2xx, 1 others", "50 requests/s", "p50 51.", "first error  first"] {
            assert!(text.contains(part), "'{part}' is not in\n{text}");
        }
        assert!(!Tally::default().summary(Duration::ZERO).to_string().contains("latency"));
    }
}
