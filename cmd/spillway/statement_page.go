package main

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

//go:embed statement.html
var statementHTML string

// page sets a document in one language.
type page struct {
	document
	Lang  string
	words map[string]string
	zone  *time.Location
}

// writePage writes d as one HTML page that needs nothing else: no script, no
// picture, no font from elsewhere.
func writePage(w io.Writer, d document, lang string) error {
	zone, err := time.LoadLocation(d.Statement.Zone)
	if err != nil {
		return fmt.Errorf("statement: time zone: %w", err)
	}
	p := page{document: d, Lang: lang, words: words(lang), zone: zone}
	t, err := template.New("statement").Funcs(template.FuncMap{
		"t": p.word, "money": p.money, "hours": p.hours, "time": p.time, "long": p.long, "exact": p.exact, "share": share,
	}).Parse(statementHTML)
	if err != nil {
		return fmt.Errorf("statement: page: %w", err)
	}
	if err := t.Execute(w, p); err != nil {
		return fmt.Errorf("statement: page: %w", err)
	}
	return nil
}

// word is the text of the page's language; a missing one stops the page.
func (p page) word(key string) (string, error) {
	text, ok := p.words[key]
	if !ok {
		return "", fmt.Errorf("no word for %q in %s", key, p.Lang)
	}
	return text, nil
}

// Month is the month in words.
func (p page) Month() string {
	year, number, _ := strings.Cut(p.Statement.Month, "-")
	n, _ := strconv.Atoi(number) // the statement was made of it
	if p.Lang == "de" {
		return []string{"Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September", "Oktober", "November", "Dezember"}[n-1] + " " + year
	}
	return time.Month(n).String() + " " + year
}

// Ended reports whether the ledger goes on behind the month.
func (p page) Ended() bool { return !p.Ledger.Last.Before(p.Statement.End) }

// Certificate is the certificate of a burst, or nil.
func (p page) Certificate(burst string) *certificate {
	if c, ok := p.Certificates[burst]; ok {
		return &c
	}
	return nil
}

// Certified reports whether certificates were looked up.
func (p page) Certified() bool { return p.records }

// Parts reports whether a burst runs over an end of the month.
func (p page) Parts() bool {
	return slices.ContainsFunc(p.Statement.Bursts, func(b quota.StatementBurst) bool { return b.Part })
}

// AllTime is the GPU time of the month, rounded as its two parts are.
func (p page) AllTime() quota.GPUTime {
	home, rented := p.Statement.Time.OnPrem, p.Statement.Time.Burst
	return quota.GPUTime{ShareSeconds: home.ShareSeconds + rented.ShareSeconds, Hundredths: home.Hundredths + rented.Hundredths}
}

// Charts are the charts of the page; one without a bar is left out.
func (p page) Charts() []chart {
	charts := []chart{p.timeChart()}
	for _, t := range p.Statement.Totals {
		charts = append(charts, p.costChart(t.Charged.Exact.Currency))
	}
	return slices.DeleteFunc(charts, func(c chart) bool { return len(c.Bars) == 0 })
}

// limit is a budget's line in whole cents. What is used is rounded up and the
// limit down, so that the page never shows more free than there is.
type limit struct {
	quota.StatementLimit
	LimitCents, SpentCents, ReservedCents, FreeCents money.Amount
}

// Limits are the budgets of the page.
func (p page) Limits() []limit {
	const cent = 10_000_000
	all := make([]limit, len(p.Statement.Budgets))
	for i, b := range p.Statement.Budgets {
		l := limit{StatementLimit: b, LimitCents: b.Limit, SpentCents: b.Spent, ReservedCents: b.Reserved, FreeCents: b.Limit}
		l.LimitCents.Nano -= b.Limit.Nano % cent
		for _, used := range []*money.Amount{&l.SpentCents, &l.ReservedCents} {
			used.Nano += (cent - used.Nano%cent) % cent
		}
		l.FreeCents.Nano = l.LimitCents.Nano - l.SpentCents.Nano - l.ReservedCents.Nano
		all[i] = l
	}
	return all
}

// money writes an amount of whole cents, such as 1.234,56 EUR.
func (p page) money(a money.Amount) string {
	return p.decimal(a.Nano/10_000_000) + "\u00a0" + string(a.Currency)
}

// exact writes an amount or a price with all of its decimals.
func (p page) exact(a fmt.Stringer) string {
	if p.Lang == "de" {
		return strings.Replace(a.String(), ".", ",", 1)
	}
	return a.String()
}

// hours writes hundredths of GPU-hours.
func (p page) hours(t quota.GPUTime) string { return p.decimal(t.Hundredths) }

// decimal writes hundredths with two decimals and grouped thousands.
func (p page) decimal(hundredths int64) string {
	group, point := ",", "."
	if p.Lang == "de" {
		group, point = ".", ","
	}
	sign := ""
	if hundredths < 0 {
		sign, hundredths = "-", -hundredths
	}
	whole := strconv.FormatInt(hundredths/100, 10)
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + group + whole[i:]
	}
	return fmt.Sprintf("%s%s%s%02d", sign, whole, point, hundredths%100)
}

// time writes a moment in the zone of the statement.
func (p page) time(t time.Time) string {
	layout := "2006-01-02 15:04"
	if p.Lang == "de" {
		layout = "02.01.2006 15:04"
	}
	return t.In(p.zone).Format(layout)
}

// day writes a local day, such as 2026-11-02.
func (p page) day(id string) string {
	if y, md, ok := strings.Cut(id, "-"); ok && p.Lang == "de" {
		m, d, _ := strings.Cut(md, "-")
		return d + "." + m + "." + y
	}
	return id
}

// long writes seconds as hours, minutes and seconds.
func (p page) long(seconds int64) string {
	return fmt.Sprintf("%d:%02d:%02d\u00a0h", seconds/3600, seconds/60%60, seconds%60)
}

// share is what part of a whole an amount is, in percent from 0 to 100.
func share(part, whole money.Amount) int64 {
	return min(100, scaled(part.Nano, whole.Nano, 100))
}

// scaled is part times size through whole, cut down; 0 of nothing.
func scaled(part, whole, size int64) int64 {
	for whole > 1<<40 || part > 1<<40 {
		part, whole = part>>1, whole>>1
	}
	if whole <= 0 {
		return 0
	}
	return part * size / whole
}
