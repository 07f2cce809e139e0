package focus

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"spillway.dev/spillway/quota/money"
)

// Type is how the values of a column are written.
type Type string

// Types of FOCUS.
const (
	String   Type = "String"
	Decimal  Type = "Decimal"   // digits, a point, a minus sign
	DateTime Type = "Date/Time" // UTC, as 2026-11-02T10:00:00Z
	JSON     Type = "JSON"      // one object
)

// Column is one column of the dataset. Nothing is the empty field.
type Column struct {
	Name  string
	Type  Type
	Nulls bool // whether it may be empty
	Scale int  // digits behind the point of a Decimal, at most

	in    Version // the only version that has it; empty for both
	value func(charge) string
}

// Columns are the columns of a version in their order: by name, our own (x_)
// last.
func Columns(v Version) []Column {
	var all []Column
	for _, c := range allColumns() {
		if c.in == "" || c.in == v {
			all = append(all, c)
		}
	}
	return all
}

func allColumns() []Column {
	return append(append(append([]Column{}, chargeColumns()...), skuColumns()...), ownColumns()...)
}

// null is what the ledger does not know.
func null(charge) string { return "" }

func is(s string) func(charge) string { return func(charge) string { return s } }

// chargeColumns are the columns up to the unit prices, by name.
func chargeColumns() []Column {
	return []Column{
		{Name: "AllocatedMethodDetails", Type: JSON, Nulls: true, in: V14, value: null}, // nothing is split
		{Name: "AllocatedMethodId", Type: String, Nulls: true, in: V14, value: null},
		{Name: "AllocatedResourceId", Type: String, Nulls: true, in: V14, value: null},
		{Name: "AllocatedResourceName", Type: String, Nulls: true, in: V14, value: null},
		{Name: "AllocatedTags", Type: JSON, Nulls: true, in: V14, value: null},
		{Name: "AvailabilityZone", Type: String, Nulls: true, value: null},
		{Name: "BilledCost", Type: Decimal, Scale: 9, value: charge.cost},
		{Name: "BillingAccountId", Type: String, value: charge.payer},
		{Name: "BillingAccountName", Type: String, Nulls: true, value: null},
		{Name: "BillingAccountType", Type: String, value: charge.payerType},
		{Name: "BillingCurrency", Type: String, value: charge.unit},
		{Name: "BillingPeriodEnd", Type: DateTime, value: func(c charge) string { return stamp(c.export.Month.End) }},
		{Name: "BillingPeriodStart", Type: DateTime, value: func(c charge) string { return stamp(c.export.Month.Start) }},
		{Name: "CapacityReservationId", Type: String, Nulls: true, value: null},
		{Name: "CapacityReservationStatus", Type: String, Nulls: true, value: null},
		{Name: "ChargeCategory", Type: String, value: func(c charge) string { return c.category }},
		{Name: "ChargeClass", Type: String, Nulls: true, value: func(c charge) string { return c.class }},
		{Name: "ChargeDescription", Type: String, Nulls: true, value: charge.description},
		{Name: "ChargeFrequency", Type: String, value: charge.frequency},
		{Name: "ChargePeriodEnd", Type: DateTime, value: func(c charge) string { return stamp(c.until) }},
		{Name: "ChargePeriodStart", Type: DateTime, value: func(c charge) string { return stamp(c.from) }},
		{Name: "ConsumedQuantity", Type: Decimal, Scale: 9, Nulls: true, value: ifUsage(func(c charge) string { return fixed(c.consumed, 9) })},
		{Name: "ConsumedUnit", Type: String, Nulls: true, value: ifUsage(is("Machine-Seconds"))},
		{Name: "ContractedCost", Type: Decimal, Scale: 21, value: charge.listed},
		{Name: "ContractedUnitPrice", Type: Decimal, Scale: 9, Nulls: true, value: ifUsage(charge.price)},
		{Name: "EffectiveCost", Type: Decimal, Scale: 9, value: charge.cost},
		{Name: "HostProviderName", Type: String, in: V14, value: charge.provider},
		{Name: "InvoiceDetailId", Type: String, Nulls: true, in: V14, value: null}, // nothing is invoiced before a period is closed
		{Name: "InvoiceId", Type: String, Nulls: true, value: null},
		{Name: "InvoiceIssuerName", Type: String, value: charge.issuer},
		{Name: "ListCost", Type: Decimal, Scale: 21, value: charge.listed},
		{Name: "ListUnitPrice", Type: Decimal, Scale: 9, Nulls: true, value: ifUsage(charge.price)},
	}
}

// skuColumns are the columns from the pricing on, by name.
func skuColumns() []Column {
	return []Column{
		{Name: "PricingCategory", Type: String, Nulls: true, value: ifUsage(is("Standard"))}, // the price was frozen by the reservation
		{Name: "PricingCurrency", Type: String, value: charge.unit},
		{Name: "PricingCurrencyContractedUnitPrice", Type: Decimal, Scale: 9, Nulls: true, value: ifUsage(charge.price)},
		{Name: "PricingCurrencyEffectiveCost", Type: Decimal, Scale: 9, value: charge.cost},
		{Name: "PricingCurrencyListUnitPrice", Type: Decimal, Scale: 9, Nulls: true, value: ifUsage(charge.price)},
		{Name: "PricingQuantity", Type: Decimal, Scale: 12, Nulls: true, value: ifUsage(func(c charge) string { return fixed(c.quantity, 12) })},
		{Name: "PricingUnit", Type: String, Nulls: true, value: ifUsage(is("Machine-Hours"))},
		{Name: "ProviderName", Type: String, in: V12, value: charge.issuer},
		{Name: "PublisherName", Type: String, in: V12, value: charge.issuer},
		{Name: "RegionId", Type: String, Nulls: true, value: null},
		{Name: "RegionName", Type: String, Nulls: true, value: null},
		{Name: "ResourceId", Type: String, Nulls: true, value: func(c charge) string { return cmp.Or(c.machine, c.account.Reservation.Burst) }},
		{Name: "ResourceName", Type: String, Nulls: true, value: null},
		{Name: "ResourceType", Type: String, Nulls: true, value: charge.resource},
		{Name: "ServiceCategory", Type: String, value: is("Compute")},
		{Name: "ServiceName", Type: String, value: is("GPU Burst")},
		{Name: "ServiceProviderName", Type: String, in: V14, value: charge.issuer},
		{Name: "ServiceSubcategory", Type: String, value: is("Virtual Machines")},
		{Name: "SkuId", Type: String, Nulls: true, value: charge.sku},
		{Name: "SkuMeter", Type: String, Nulls: true, value: ifUsage(is("Machine Time"))},
		{Name: "SkuPriceDetails", Type: JSON, Nulls: true, value: ifUsage(charge.details)},
		{Name: "SkuPriceId", Type: String, Nulls: true, value: charge.sku}, // without amount and date, as FOCUS wants it
		{Name: "SubAccountId", Type: String, Nulls: true, value: charge.project},
		{Name: "SubAccountName", Type: String, Nulls: true, value: null},
		{Name: "SubAccountType", Type: String, Nulls: true, value: charge.projectType},
		{Name: "Tags", Type: JSON, Nulls: true, value: null},
	}
}

// ownColumns are what FOCUS has no place for.
func ownColumns() []Column {
	return []Column{
		{Name: "x_BurstCause", Type: String, Nulls: true, value: func(c charge) string { return c.account.Settlement.Cause }},
		{Name: "x_BurstNamespace", Type: String, Nulls: true, value: func(c charge) string { return c.account.Reservation.Namespace }},
		{Name: "x_BurstUid", Type: String, value: func(c charge) string { return c.account.Reservation.Burst }},
		{Name: "x_EntryHash", Type: String, value: func(c charge) string { return c.account.Hash }}, // of the settlement in the journal
		{Name: "x_EntrySeq", Type: Decimal, value: func(c charge) string { return strconv.FormatInt(c.account.Seq, 10) }},
		{Name: "x_GpuSeconds", Type: Decimal, Nulls: true, Scale: 9, value: charge.gpuSeconds},
		{Name: "x_OwnerUid", Type: String, Nulls: true, value: func(c charge) string { return c.account.Reservation.Owner }},
		{Name: "x_ProjectId", Type: String, Nulls: true, value: func(c charge) string { return c.account.Reservation.Project }},
		{Name: "x_TenantId", Type: String, value: func(c charge) string { return c.account.Reservation.Tenant }},
		{Name: "x_View", Type: String, value: func(c charge) string { return string(c.export.View) }},
	}
}

// ifUsage leaves a column empty where nothing has a price: in credits and
// adjustments.
func ifUsage(value func(charge) string) func(charge) string {
	return func(c charge) string {
		if c.category != usage {
			return ""
		}
		return value(c)
	}
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

func (c charge) cost() string     { return fixed(c.billed.Nano, 9) }
func (c charge) unit() string     { return string(c.billed.Currency) }
func (c charge) provider() string { return c.account.Reservation.Provider }
func (c charge) price() string    { return fixed(c.account.Reservation.Price.NanoPerHour, 9) }

// listed is price times quantity, or the posted cost where there is no price.
func (c charge) listed() string {
	if c.category != usage {
		return c.cost()
	}
	return product(c.account.Reservation.Price.NanoPerHour, c.quantity)
}

// gpuSeconds is what the agents measured in the hour, of whole GPUs; nothing
// where they have measured nothing.
func (c charge) gpuSeconds() string {
	if c.gpus == 0 {
		return ""
	}
	whole, rest := c.gpus/money.Whole, c.gpus%money.Whole
	return fixed(whole*nano+(rest*nano+money.Whole/2)/money.Whole, 9)
}

// payer is the account that is charged: the tenant, or the operator's account
// at the provider.
func (c charge) payer() string {
	if c.export.View == ViewProvider {
		return c.account.Reservation.Provider
	}
	return c.account.Reservation.Tenant
}

func (c charge) payerType() string {
	if c.export.View == ViewProvider {
		return "Provider Account"
	}
	return "Tenant"
}

// issuer is who charges: the operator, or the provider.
func (c charge) issuer() string {
	if c.export.View == ViewProvider {
		return c.account.Reservation.Provider
	}
	return c.export.Operator
}

// project is the part of the tenant; the account at a provider has none.
func (c charge) project() string {
	if c.export.View == ViewProvider {
		return ""
	}
	return c.account.Reservation.Project
}

func (c charge) projectType() string {
	if c.project() == "" {
		return ""
	}
	return "Project"
}

// resource is what ResourceId names.
func (c charge) resource() string {
	if c.machine == "" {
		return "Burst"
	}
	return "Machine"
}

func (c charge) frequency() string {
	if c.category == usage {
		return "Usage-Based"
	}
	return "One-Time"
}

func (c charge) description() string {
	r := c.account.Reservation
	text := fmt.Sprintf("burst %s at %s", r.Burst, r.Provider)
	if r.Offer != "" {
		text = fmt.Sprintf("%s at %s, burst %s", r.Offer, r.Provider, r.Burst)
	}
	if c.reason != "" {
		return text + ": " + c.reason
	}
	return text
}

// details are the properties of the SKU that the ledger knows.
func (c charge) details() string {
	offer := c.account.Reservation.Offer
	if offer == "" {
		return ""
	}
	text, _ := json.Marshal(map[string]string{"InstanceType": offer}) // a map of strings is always JSON
	return string(text)
}
