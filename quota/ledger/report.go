package ledger

import (
	"fmt"
	"time"
)

// Finding is one thing that is wrong with a journal.
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
	Epoch      int64     `json:"epoch"`
	Head       string    `json:"head"` // hash of the last row, in hex
	Last       time.Time `json:"last,omitzero"`
	Findings   []Finding `json:"findings"`
	More       int64     `json:"moreFindings,omitzero"` // beyond those listed
	Checked    []string  `json:"checked"`
	NotChecked []string  `json:"notChecked"`
}
