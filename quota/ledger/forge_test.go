package ledger_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"spillway.dev/spillway/quota/ledger"
)

// forgery is one edit of one row of the storied ledger, and what Verify has to
// say about it at which row.
type forgery struct {
	seq  int64
	edit func(*ledger.Row)
	at   int64
	what string
}

// replace changes a text wherever it is in the row.
func replace(old, text string) func(*ledger.Row) {
	return func(r *ledger.Row) {
		if !strings.Contains(r.Entries+r.Intent, old) {
			panic(old + " is not in " + r.Entries + r.Intent)
		}
		r.Entries, r.Intent = strings.ReplaceAll(r.Entries, old, text), strings.ReplaceAll(r.Intent, old, text)
	}
}

// in changes a text in the entries only, once.
func in(old, text string) func(*ledger.Row) {
	return func(r *ledger.Row) { r.Entries = strings.Replace(r.Entries, old, text, 1) }
}

// line adds an entry.
func line(l string) func(*ledger.Row) { return func(r *ledger.Row) { r.Entries += l + "\n" } }

// without takes out all entries that hold a text.
func without(part string) func(*ledger.Row) {
	return func(r *ledger.Row) {
		lines := slices.Collect(strings.Lines(r.Entries))
		r.Entries = strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, part) }), "")
	}
}

// become makes it another row without entries.
func become(kind, burst, intent string) func(*ledger.Row) {
	return func(r *ledger.Row) { r.Kind, r.Burst, r.Intent, r.Entries, r.Key = kind, burst, intent, "", "x" }
}

// forgedMoney is what somebody would change to move money.
func forgedMoney() map[string]forgery {
	return map[string]forgery{
		"the limit was lower":                 {2, replace("10.00 EUR", "3.00 EUR"), 3, `hard budget "team" is exceeded in 2026-10: spent 0.00 EUR and reserved 4.00 EUR pass the limit of 3.00 EUR`},
		"the limit was lower at an extension": {2, replace("10.00 EUR", "5.00 EUR"), 5, `hard budget "team" is exceeded`},
		"more was reserved than there was":    {12, replace("5.00 EUR", "6.51 EUR"), 12, `hard budget "team" is exceeded`},
		"a budget was left out":               {3, without("budget/team"), 3, `budget "team" does not hold 4.00 EUR in 2026-10`},
		"a budget holds less":                 {3, in("open\t4.00", "open\t3.00"), 3, `does not hold 4.00 EUR`},
		"the burst holds less":                {3, in("committed\t4.00", "committed\t3.00"), 3, "does not book what was asked for"},
		"the wrong window holds it":           {3, replace("2026-10/", "2026-11/"), 3, `does not hold 4.00 EUR in 2026-10`},
		"a budget that is not on the path":    {3, line("budget/other/2026-10/reserved\tbudget/other/2026-10/open\t4.00 EUR"), 3, "not on its path"},
		"somebody else pays":                  {6, replace("tenant/vision/spend", "tenant/speech/spend"), 6, "which no settle may"},
		"somebody else is paid":               {6, replace("provider/ovh", "provider/mine"), 6, "which no settle may"},
		"more is charged than was reserved":   {6, replace("2.50 EUR", "6.50 EUR"), 6, "charges more than was reserved"},
		"less is charged than it cost":        {6, in("2.50", "2.40"), 6, "does not post the actual cost"},
		"the overrun is hidden":               {10, without("operator/overrun"), 10, "does not post the actual cost"},
		"a fault is charged to the tenant":    {6, replace(`"done"`, `"provider-fault"`), 6, "charges the wrong side"},
		"a fault is charged to both sides": {6, func(r *ledger.Row) {
			r.Intent = strings.Replace(r.Intent, `"done"`, `"provider-fault"`, 1)
			r.Entries = strings.NewReplacer("2.50", "1.50", "3.50", "4.50").Replace(r.Entries) + "operator/fault\tprovider/ovh/accrued\t1.00 EUR\n"
		}, 6, "charges the wrong side"},
		"the operator pays a part that is no fault": {6, func(r *ledger.Row) {
			r.Entries = strings.NewReplacer("2.50", "1.50", "3.50", "4.50").Replace(r.Entries) + "operator/fault\tprovider/ovh/accrued\t1.00 EUR\n"
		}, 6, "charges the wrong side"},
		"sums that wrap around to nothing": {6, line("operator/overrun\tprovider/ovh/accrued\t9223372036.854775807 EUR\n" +
			"operator/overrun\tprovider/ovh/accrued\t9223372036.854775807 EUR\noperator/overrun\tprovider/ovh/accrued\t0.000000002 EUR"), 6, "leaves the range of amounts"},
		"the budget gets back too much": {6, in("3.50 EUR", "3.60 EUR"), 6, "do not get back what was reserved"},
		"not all is released":           {6, in("burst/a/reserved\t6.00", "burst/a/reserved\t5.00"), 6, "leaves money reserved"},
		"a shrink that releases less":   {9, func(r *ledger.Row) { r.Intent = strings.Replace(r.Intent, "1.00 EUR", "0.50 EUR", 1) }, 9, "does not release what it says"},
	}
}

// forgedLives is what can't happen to a burst, a leader or a record.
func forgedLives() map[string]forgery {
	return map[string]forgery{
		"a second reservation":              {12, become("reserve", "a", `{"reserve":{"burst":"a"}}`), 12, `burst "a" is reserved a second time`},
		"a second settlement":               {12, become("settle", "a", `{"settle":{"burst":"a"}}`), 12, `settle of burst "a" after its settlement`},
		"a permit after the settlement":     {12, become("permit", "a", `{"permit":{"burst":"a","ordinal":0,"epoch":1}}`), 12, `after its settlement`},
		"a permit without a reservation":    {12, become("permit", "z", `{"permit":{"burst":"z","ordinal":0,"epoch":1}}`), 12, "which was never reserved"},
		"the same permit twice":             {5, become("permit", "a", `{"permit":{"burst":"a","ordinal":0,"epoch":1}}`), 5, "permitted a second time"},
		"a permit while draining":           {10, become("permit", "b", `{"permit":{"burst":"b","ordinal":0,"epoch":1}}`), 10, "nothing is reserved for"},
		"a permit of another leader":        {4, replace(`"epoch":1`, `"epoch":2`), 4, "nothing is reserved for"},
		"an old leader wrote":               {5, func(r *ledger.Row) { r.Epoch = 0 }, 5, "written in epoch 0 while epoch 1 led"},
		"a leader came twice":               {11, become("epoch", "", `{"epoch":{"number":1,"holder":"x"}}`), 11, "leader epoch 1 follows epoch 1"},
		"an overrun was not accepted":       {11, become("epoch", "", `{"epoch":{"number":2,"holder":"x"}}`), 12, "while an overrun was open"},
		"an acceptance of less":             {11, replace("0.25 EUR", "0.20 EUR"), 11, "not open in this amount"},
		"an entry with one side":            {3, line("\tbudget/team/2026-10/open\t4.00 EUR"), 3, "is none"},
		"an entry of nothing":               {3, line("operator/fault\tprovider/ovh/accrued\t0.00 EUR"), 3, "is none"},
		"an entry of less than nothing":     {3, line("operator/fault\tprovider/ovh/accrued\t-1.00 EUR"), 3, "is none"},
		"money of another currency":         {3, line("operator/fault\tprovider/ovh/accrued\t1.00 USD"), 3, "for a burst in EUR"},
		"usage was counted twice":           {7, replace(",0,1,2,2,3,", ",0,1,2,1,3,"), 7, "is booked a second time"},
		"budgets that move money":           {2, line("operator/fault\tprovider/ovh/accrued\t1.00 EUR"), 2, "a change of budgets moves money"},
		"a budget that changed its zone":    {11, become("budgets", "", `{"budgets":{"budgets":[{"id":"team","scope":"tenant","subject":"vision","window":"month","zone":"UTC","limit":"10.00 EUR","hard":true}]}}`), 11, "of a budget never change"},
		"budgets of one name":               {2, replace(`"budgets":[`, `"budgets":[{"id":"team","scope":"global","window":"month","zone":"UTC","limit":"99.00 EUR"},`), 2, "it is named twice"},
		"a reservation above its ceiling":   {3, replace(`"amount":"4.00 EUR"`, `"amount":"4.00 EUR","ceiling":"3.00 EUR"`), 3, "is above its ceiling"},
		"a reservation that ends first":     {3, replace(`"until":"2026-10-05T12:00:00Z"`, `"until":"2026-10-05T07:00:00Z"`), 3, "must have a start before its end"},
		"a settlement of less than no time": {6, replace(`"seconds":3600`, `"seconds":-3600`), 6, "machine seconds"},
		"a permit under another key":        {4, func(r *ledger.Row) { r.Key = "7/1" }, 4, "its key"},
		"an extension under another key":    {5, func(r *ledger.Row) { r.Key = "2" }, 5, "its key"},
		"a permit below the first": {4, func(r *ledger.Row) {
			r.Key, r.Intent = "-1/1", strings.Replace(r.Intent, `"ordinal":0`, `"ordinal":-1`, 1)
		}, 4, "numbers start at 0"},
		"a clock that goes back": {5, func(r *ledger.Row) { r.Recorded -= int64(time.Hour) }, 5, "its record time is not after that of row 4"},
		"a clock that stands":    {5, func(r *ledger.Row) { r.Recorded-- }, 5, "its record time is not after that of row 4"},
		"a row of no kind":       {4, func(r *ledger.Row) { r.Kind = "gift" }, 4, "kind and content do not belong together"},
		"text behind the intent": {4, func(r *ledger.Row) { r.Intent += "{}" }, 4, "intent can't be read"},
	}
}

// A journal that was written anew with a chain that fits still has to make
// sense: Verify checks what the rows say, not only that they hang together.
func TestVerifyFindsForgedSense(t *testing.T) {
	base := storied(t)
	tests := forgedMoney()
	maps.Copy(tests, forgedLives())
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := base.copy(t)
			f.rewrite(map[int64]func(*ledger.Row){tt.seq: tt.edit})
			r := f.findings()
			if !slices.ContainsFunc(r.Findings, func(f ledger.Finding) bool { return f.Seq == tt.at && strings.Contains(f.What, tt.what) }) {
				t.Errorf("want row %d: %s; got\n%s", tt.at, tt.what, r)
			}
			if slices.ContainsFunc(r.Findings, func(f ledger.Finding) bool {
				return strings.Contains(f.What, "hash") || strings.Contains(f.What, "chain")
			}) {
				t.Errorf("the forgery is a bad one:\n%s", r)
			}
		})
	}
}

// rewrite writes the journal anew with edited rows and a chain that fits.
func (f *fixture) rewrite(edit map[int64]func(*ledger.Row)) {
	f.t.Helper()
	db := behind(f.t, f.path)
	for _, s := range withoutGuards() {
		_, err := db.Exec(s)
		f.must(err)
	}
	f.must(ledger.Forge(f.ctx(), db, edit))
	for _, s := range withGuards() {
		_, err := db.Exec(s)
		f.must(err)
	}
	f.must(db.Close())
}
