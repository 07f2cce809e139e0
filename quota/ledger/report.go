package ledger

import (
	"fmt"
	"strings"
	"time"
)

// maxFindings is how many findings a report lists; more are only counted.
const maxFindings = 100

// Finding is one thing that is wrong with a ledger.
type Finding struct {
	Seq  int64  `json:"seq"` // row of the journal; 0 when it is about no single row
	What string `json:"what"`
}

// String is the finding in one line.
func (f Finding) String() string {
	if f.Seq == 0 {
		return f.What
	}
	return fmt.Sprintf("row %d: %s", f.Seq, f.What)
}

// Report is the result of [Ledger.Verify].
type Report struct {
	Path       string    `json:"path"`
	OK         bool      `json:"ok"` // nothing was found
	Rows       int64     `json:"rows"`
	Entries    int64     `json:"entries"`      // two-sided entries
	Usage      int64     `json:"usageRecords"` // usage records
	Bursts     int64     `json:"bursts"`
	Open       int64     `json:"openBursts"` // not settled
	Epoch      int64     `json:"epoch"`      // newest leader's
	Head       string    `json:"head"`       // hash of the last row, in hex
	Last       time.Time `json:"last,omitzero"`
	Heads      int64     `json:"heads,omitzero"`   // signed heads that it was compared with
	Covered    int64     `json:"covered,omitzero"` // the newest row that one of them covers
	Findings   []Finding `json:"findings"`
	More       int64     `json:"moreFindings,omitzero"` // beyond those listed
	Checked    []string  `json:"checked"`
	NotChecked []string  `json:"notChecked"`
}

// checked is what a report vouches for.
func checked(r Report) []string {
	all := []string{
		"every row has its number, its hash, and continues the row before",
		"record times and leader epochs rise; every row was written by the newest leader of its time",
		"every entry has two sides, and all debits equal all credits",
		"no reservation or extension left a hard budget above its limit, in any window that it touches",
		"every burst is reserved once, settled once, and never touched after that",
		"slices of a burst follow on one another, stay below its ceiling, and pay for all that its machines can cost until their end",
		"no settlement charges more than was reserved; what is beyond it is on the overrun account",
		"every correction takes the whole of the old cost back and posts the new one; months were closed in their order, when nothing was pending or after 72 h, and nothing was posted to them later",
		"every create permit was given once, on an open reservation",
		"every usage record is booked once; the hourly totals and the list of records match the journal",
	}
	if r.Heads > 0 {
		all = append(all, fmt.Sprintf("signed heads (%d): up to row %d it is the journal that was there when they were signed", r.Heads, r.Covered))
	}
	return all
}

// notChecked is what a report can't know.
func notChecked(r Report) []string {
	rewritten := "that rows at the end were cut off, or all rows written anew: compare the head with one kept elsewhere"
	if r.Heads > 0 {
		rewritten = fmt.Sprintf("that rows behind row %d were cut off or written anew: no signed head covers them", r.Covered)
	}
	return []string{rewritten, "that settled amounts are what the providers bill"}
}

// Lines is the report for people, one line each.
func (r Report) Lines() []string {
	lines := []string{
		fmt.Sprintf("ledger %s", r.Path),
		fmt.Sprintf("  %d rows, %d entries, %d usage records, %d bursts (%d open), epoch %d", r.Rows, r.Entries, r.Usage, r.Bursts, r.Open, r.Epoch),
	}
	if r.Rows > 0 {
		lines = append(lines, fmt.Sprintf("  head %s of %s", r.Head, r.Last.Format(time.RFC3339)))
	}
	if r.OK {
		for _, c := range r.Checked {
			lines = append(lines, "  ok: "+c)
		}
	}
	for _, f := range r.Findings {
		lines = append(lines, "  WRONG: "+f.String())
	}
	if r.More > 0 {
		lines = append(lines, fmt.Sprintf("  and %d more", r.More))
	}
	for _, c := range r.NotChecked {
		lines = append(lines, "  not checked: "+c)
	}
	if r.OK {
		return append(lines, "verified")
	}
	return append(lines, "NOT verified: keep this file as it is, restore a backup beside it, and compare the two")
}

// String is all lines of the report.
func (r Report) String() string { return strings.Join(r.Lines(), "\n") + "\n" }
