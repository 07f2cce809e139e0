package quota

import (
	"fmt"
	"strings"
	"time"

	"spillway.dev/spillway/quota/money"
)

// Kind says what an [Event] is.
type Kind string

// Kinds of events. Those on a burst carry its UID. Behind the settlement of a
// burst only corrections follow.
const (
	KindEpoch   Kind = "epoch"   // a new leader
	KindBudgets Kind = "budgets" // the whole set of budgets, replaced
	KindReserve Kind = "reserve" // first event of a burst
	KindExtend  Kind = "extend"
	KindShrink  Kind = "shrink"
	KindPermit  Kind = "permit"
	KindSettle  Kind = "settle" // closes the account of a burst
	KindUsage   Kind = "usage"
	KindAccept  Kind = "accept"  // an overrun, accepted by a person
	KindClose   Kind = "close"   // a billing month, by a person
	KindCorrect Kind = "correct" // of a settled burst, by a person
)

// AccountName is the name of one account. A burst's money is booked twice over:
// once between tenant and burst, and once in every window of every budget on
// its path.
//
//	burst/<uid>/reserved            promised to this burst and still open
//	tenant/<id>/committed           the other side of it
//	tenant/<id>/spend               charged to the tenant
//	provider/<id>/accrued           owed to the provider
//	operator/fault                  paid by the operator: the provider failed
//	operator/overrun                paid by the operator: beyond the reservation
//	operator/overrun-accepted       the same, after a person has accepted it
//	budget/<id>/<window>/reserved   promised out of this window
//	budget/<id>/<window>/spent      spent out of this window
//	budget/<id>/<window>/open       the other side of both
type AccountName string

// Accounts of the operator.
const (
	AccountFault    AccountName = "operator/fault"
	AccountOverrun  AccountName = "operator/overrun"
	AccountAccepted AccountName = "operator/overrun-accepted"
)

// Sides of a budget's window.
const (
	sideReserved = "reserved"
	sideSpent    = "spent"
	sideOpen     = "open"
)

// BurstAccount names what is promised to a burst.
func BurstAccount(burst string) AccountName { return AccountName("burst/" + burst + "/reserved") }

// CommittedAccount names what a tenant has promised to bursts.
func CommittedAccount(tenant string) AccountName {
	return AccountName("tenant/" + tenant + "/committed")
}

// SpendAccount names what a tenant has been charged.
func SpendAccount(tenant string) AccountName { return AccountName("tenant/" + tenant + "/spend") }

// AccruedAccount names what is owed to a provider.
func AccruedAccount(provider string) AccountName {
	return AccountName("provider/" + provider + "/accrued")
}

func windowAccount(h Hold, side string) AccountName {
	return AccountName("budget/" + h.Budget + "/" + h.Period + "/" + side)
}

// Window returns the budget window that a belongs to and whether it is the
// "reserved", "spent" or "open" side; ok is false for all other accounts.
func (a AccountName) Window() (h Hold, side string, ok bool) {
	rest, ok := strings.CutPrefix(string(a), "budget/")
	if !ok {
		return Hold{}, "", false
	}
	j := strings.LastIndexByte(rest, '/')
	if j < 0 {
		return Hold{}, "", false
	}
	i := strings.LastIndexByte(rest[:j], '/')
	if i < 0 {
		return Hold{}, "", false
	}
	return Hold{Budget: rest[:i], Period: rest[i+1 : j]}, rest[j+1:], true
}

// Hold names one window of one budget in which a reservation counts.
type Hold struct {
	Budget string `json:"budget"`
	Period string `json:"period"`
}

// Held is what one window of one budget holds for one burst.
type Held struct {
	Hold
	Amount money.Amount `json:"amount"`
}

// ReservedAccount names what is promised out of the window.
func (h Hold) ReservedAccount() AccountName { return windowAccount(h, sideReserved) }

// SpentAccount names what is spent out of the window.
func (h Hold) SpentAccount() AccountName { return windowAccount(h, sideSpent) }

// Entry moves an amount, always more than zero, from Credit to Debit. The
// balance of an account is its debits less its credits.
type Entry struct {
	Debit  AccountName  `json:"debit"`
	Credit AccountName  `json:"credit"`
	Amount money.Amount `json:"amount"`
}

// Event is one accepted change of the book: what was asked, and what it moved.
// A [Book] proposes events and takes in those that the ledger has committed.
type Event struct {
	Kind    Kind
	Burst   string    // empty unless it is about one burst
	Key     string    // what makes it unique within burst and kind
	At      time.Time // record time; zero while it is only proposed
	Intent  Intent
	Entries []Entry
}

// Intent is what the caller asked for; exactly the field of the event's kind is set.
type Intent struct {
	Reserve *Reservation `json:"reserve,omitempty"`
	Extend  *Extension   `json:"extend,omitempty"`
	Shrink  *Reduction   `json:"shrink,omitempty"`
	Permit  *Permit      `json:"permit,omitempty"`
	Settle  *Settlement  `json:"settle,omitempty"`
	Budgets *BudgetSet   `json:"budgets,omitempty"`
	Epoch   *Epoch       `json:"epoch,omitempty"`
	Accept  *Acceptance  `json:"accept,omitempty"`
	Close   *Closing     `json:"close,omitempty"`
	Correct *Correction  `json:"correct,omitempty"`
}

// BudgetSet is all budgets that exist from now on.
type BudgetSet struct {
	Budgets []Budget `json:"budgets"`
}

// Epoch is the term of one leader. Only the newest may write.
type Epoch struct {
	Number int64  `json:"number"`
	Holder string `json:"holder"`
}

// Acceptance takes the open overrun of one currency off the operator's account.
type Acceptance struct {
	Amount money.Amount `json:"amount"`
	By     string       `json:"by"`
	Reason string       `json:"reason"`
}

// moves collects entries and leaves out those that move nothing.
type moves []Entry

func (m *moves) add(debit, credit AccountName, a money.Amount) {
	if !a.IsZero() {
		*m = append(*m, Entry{Debit: debit, Credit: credit, Amount: a})
	}
}

// check returns why e is no entry at all.
func (e Entry) check() error {
	if e.Amount.Nano <= 0 || !e.Amount.Currency.Valid() || e.Debit == "" || e.Credit == "" || e.Debit == e.Credit {
		return fmt.Errorf("%w: entry of %v from %q to %q", ErrInvalid, e.Amount, e.Credit, e.Debit)
	}
	return nil
}
