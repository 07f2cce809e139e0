package focus_test

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"spillway.dev/spillway/quota/focus"
)

// The rules below are written down from the specification (Cost and Usage, 1.2
// and 1.4), not from the code that they check: name, type, nulls allowed (null)
// or not (set), versions, allowed values.
const rules = `
AllocatedMethodDetails JSON null 1.4
AllocatedMethodId String null 1.4
AllocatedResourceId String null 1.4
AllocatedResourceName String null 1.4
AllocatedTags JSON null 1.4
AvailabilityZone String null both
BilledCost Decimal set both
BillingAccountId String set both
BillingAccountName String null both
BillingAccountType String set both
BillingCurrency Currency set both
BillingPeriodEnd Date/Time set both
BillingPeriodStart Date/Time set both
CapacityReservationId String null both
CapacityReservationStatus String null both Used|Unused
ChargeCategory String set both Usage|Purchase|Tax|Credit|Adjustment
ChargeClass String null both Correction
ChargeDescription String null both
ChargeFrequency String set both One-Time|Recurring|Usage-Based
ChargePeriodEnd Date/Time set both
ChargePeriodStart Date/Time set both
ConsumedQuantity Decimal null both
ConsumedUnit Unit null both
ContractedCost Decimal set both
ContractedUnitPrice Decimal null both
EffectiveCost Decimal set both
HostProviderName String set 1.4
InvoiceDetailId String null 1.4
InvoiceId String null both
InvoiceIssuerName String set both
ListCost Decimal set both
ListUnitPrice Decimal null both
PricingCategory String null both Standard|Dynamic|Committed|Other
PricingCurrency Currency set both
PricingCurrencyContractedUnitPrice Decimal null both
PricingCurrencyEffectiveCost Decimal set both
PricingCurrencyListUnitPrice Decimal null both
PricingQuantity Decimal null both
PricingUnit Unit null both
ProviderName String set 1.2
PublisherName String set 1.2
RegionId String null both
RegionName String null both
ResourceId String null both
ResourceName String null both
ResourceType String null both
ServiceCategory String set both Compute
ServiceName String set both
ServiceProviderName String set 1.4
ServiceSubcategory String set both Containers|Virtual Machines
SkuId String null both
SkuMeter String null both
SkuPriceDetails JSON null both
SkuPriceId String null both
SubAccountId String null both
SubAccountName String null both
SubAccountType String null both
Tags JSON null both
`

// rule is one line of the rules.
type rule struct {
	kind    string
	form    *regexp.Regexp
	nulls   bool
	allowed []string
}

func rulesOf(t *testing.T, v focus.Version) (names []string, byName map[string]rule) {
	t.Helper()
	byName = make(map[string]rule)
	forms := formats()
	for line := range strings.Lines(strings.TrimSpace(rules)) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 5)
		if f[3] != "both" && f[3] != string(v) {
			continue
		}
		r := rule{kind: f[1], form: forms[f[1]], nulls: f[2] == "null"}
		if len(f) == 5 {
			r.allowed = strings.Split(f[4], "|")
		}
		names = append(names, f[0])
		byName[f[0]] = r
	}
	return names, byName
}

// formats are the forms of values by type.
func formats() map[string]*regexp.Regexp {
	return map[string]*regexp.Regexp{
		"String":    regexp.MustCompile(`^\S(.*\S)?$`),
		"Decimal":   regexp.MustCompile(`^-?\d+(\.\d+)?$`),
		"Currency":  regexp.MustCompile(`^[A-Z]{3}$`),
		"Date/Time": regexp.MustCompile(`^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$`),
		"Unit":      regexp.MustCompile(`^(\d+ )?[A-Z][A-Za-z]*(-(Hours|Seconds|Minutes|Days|Months))?$`),
		"JSON":      regexp.MustCompile(`^\{.*\}$`),
	}
}

// dataset is a file that was read back.
type dataset struct {
	t       *testing.T
	version focus.Version
	names   []string
	rows    []map[string]string
}

func read(t *testing.T, v focus.Version, text string) dataset {
	t.Helper()
	records, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	d := dataset{t: t, version: v, names: records[0]}
	for _, r := range records[1:] {
		row := make(map[string]string)
		for i, cell := range r {
			row[d.names[i]] = cell
		}
		d.rows = append(d.rows, row)
	}
	return d
}

// problems is everything that is wrong with a dataset.
func (d dataset) problems() []string {
	names, byName := rulesOf(d.t, d.version)
	var found []string
	own := d.names[min(len(names), len(d.names)):]
	if !slices.Equal(d.names[:min(len(names), len(d.names))], names) {
		found = append(found, fmt.Sprintf("columns are %v, want %v first", d.names, names))
	}
	for _, n := range own {
		if !strings.HasPrefix(n, "x_") {
			found = append(found, "column "+n+" is not in the specification and has no x_")
		}
	}
	views := map[string]bool{}
	for i, row := range d.rows {
		views[row["x_View"]] = true
		say := func(format string, args ...any) {
			found = append(found, fmt.Sprintf("row %d: ", i)+fmt.Sprintf(format, args...))
		}
		for name, r := range byName {
			r.check(name, row[name], say)
		}
		checkNulls(row, say)
		checkCosts(row, say)
		checkTimes(row, say)
	}
	if len(views) > 1 {
		found = append(found, "two views in one file")
	}
	return found
}

func (r rule) check(name, value string, say func(string, ...any)) {
	switch {
	case value == "" && !r.nulls:
		say("%s is null", name)
	case value == "":
	case !r.form.MatchString(value):
		say("%s is %q, which is no %s", name, value, r.kind)
	case len(r.allowed) > 0 && !slices.Contains(r.allowed, value):
		say("%s is %q, allowed are %v", name, value, r.allowed)
	case r.kind == "JSON" && !json.Valid([]byte(value)):
		say("%s is %q, which is no JSON", name, value)
	}
}

// checkNulls checks what has to be there, or not, in each kind of charge.
func checkNulls(row map[string]string, say func(string, ...any)) {
	priced := []string{
		"ConsumedQuantity", "ConsumedUnit", "ContractedUnitPrice", "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit",
		"PricingCurrencyContractedUnitPrice", "PricingCurrencyListUnitPrice", "SkuId", "SkuMeter", "SkuPriceId",
	}
	for _, name := range priced {
		if (row["ChargeCategory"] == "Usage") == (row[name] == "") {
			say("%s is %q in a %s", name, row[name], row["ChargeCategory"])
		}
	}
	if row["SkuPriceId"] == "" && row["SkuPriceDetails"] != "" {
		say("SkuPriceDetails without SkuPriceId")
	}
	for _, pair := range [][2]string{{"SubAccountId", "SubAccountType"}, {"ResourceId", "ResourceType"}} {
		if (row[pair[0]] == "") != (row[pair[1]] == "") {
			say("%s is %q and %s is %q", pair[0], row[pair[0]], pair[1], row[pair[1]])
		}
	}
	if row["ChargeCategory"] == "Purchase" && row["ChargeFrequency"] == "Usage-Based" {
		say("a purchase is never usage-based")
	}
}

// checkCosts checks the arithmetic, exactly.
func checkCosts(row map[string]string, say func(string, ...any)) {
	n := func(name string) *big.Rat {
		r, ok := new(big.Rat).SetString(row[name])
		if !ok {
			return nil
		}
		return r
	}
	for _, pair := range [][2]string{{"ListUnitPrice", "ListCost"}, {"ContractedUnitPrice", "ContractedCost"}} {
		price, quantity, cost := n(pair[0]), n("PricingQuantity"), n(pair[1])
		if price != nil && quantity != nil && cost != nil && new(big.Rat).Mul(price, quantity).Cmp(cost) != 0 {
			say("%s %s times %s is not %s %s", pair[0], row[pair[0]], row["PricingQuantity"], pair[1], row[pair[1]])
		}
		if price != nil && price.Sign() < 0 {
			say("%s is negative", pair[0])
		}
		if price == nil && cost != nil && cost.Cmp(n("BilledCost")) != 0 {
			say("%s is %s without a price, BilledCost is %s", pair[1], row[pair[1]], row["BilledCost"])
		}
	}
	if row["BillingCurrency"] == row["PricingCurrency"] && row["PricingCurrencyEffectiveCost"] != row["EffectiveCost"] {
		say("effective cost is %s and, in the same currency, %s", row["EffectiveCost"], row["PricingCurrencyEffectiveCost"])
	}
	if row["ChargeCategory"] == "Credit" && n("BilledCost").Sign() >= 0 {
		say("a credit of %s", row["BilledCost"])
	}
}

// checkTimes checks that periods are half-open and lie in one another.
func checkTimes(row map[string]string, say func(string, ...any)) {
	at := func(name string) time.Time {
		t, err := time.Parse(time.RFC3339, row[name])
		if err != nil {
			say("%s: %v", name, err)
		}
		return t
	}
	start, end := at("ChargePeriodStart"), at("ChargePeriodEnd")
	if !start.Before(end) || start.Before(at("BillingPeriodStart")) || end.After(at("BillingPeriodEnd")) {
		say("charged from %v to %v in the period from %s to %s", start, end, row["BillingPeriodStart"], row["BillingPeriodEnd"])
	}
	if end.After(start.Truncate(time.Hour).Add(time.Hour)) {
		say("charged from %v to %v, more than one UTC hour", start, end)
	}
}
