package focus

import (
	"encoding/json"
	"fmt"
	"io"
)

// schemaCreated is when the columns last changed; a change needs a new one, and
// a new number in the id.
const schemaCreated = "2026-11-30T00:00:00Z"

// schema is the metadata object that describes a dataset.
type schema struct {
	SchemaID             string `json:"SchemaId"`
	FocusVersion         Version
	CreationDate         string
	DataGenerator        string
	DataGeneratorVersion string
	ColumnDefinition     []definition
}

type definition struct {
	ColumnName       string
	DataType         string
	NumericPrecision int    `json:",omitzero"`
	NumberScale      *int   `json:",omitzero"`
	StringMaxLength  int    `json:",omitzero"`
	StringEncoding   string `json:",omitzero"`
}

// maxText is the longest text of a column, in bytes: a description names three
// ids of the ledger.
const maxText = 1024

// WriteSchema writes the schema metadata that FOCUS wants beside a dataset. It
// is the same for every export of a version.
func WriteSchema(w io.Writer, v Version) error {
	if err := v.check(); err != nil {
		return err
	}
	s := schema{
		SchemaID: fmt.Sprintf("spillway-cost-and-usage-%s-1", v), FocusVersion: v, CreationDate: schemaCreated,
		DataGenerator: "Spillway", DataGeneratorVersion: "1",
	}
	for _, c := range Columns(v) {
		s.ColumnDefinition = append(s.ColumnDefinition, c.definition())
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	if err := out.Encode(s); err != nil {
		return fmt.Errorf("FOCUS schema %s: %w", v, err)
	}
	return nil
}

func (c Column) definition() definition {
	switch c.Type {
	case Decimal:
		precision := 19 // of an int64
		if c.Scale > 18 {
			precision = 38 // of a product of two
		}
		return definition{ColumnName: c.Name, DataType: "DECIMAL", NumericPrecision: precision, NumberScale: &c.Scale}
	case DateTime:
		return definition{ColumnName: c.Name, DataType: "DATETIME"}
	case JSON:
		return definition{ColumnName: c.Name, DataType: "JSON"}
	}
	return definition{ColumnName: c.Name, DataType: "STRING", StringMaxLength: maxText, StringEncoding: "UTF-8"}
}
