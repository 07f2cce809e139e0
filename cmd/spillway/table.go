package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// table is an answer in rows. A column whose name begins with ">" is set to the
// right, as numbers are.
type table struct {
	columns []string
	rows    [][]string
	empty   string // the sentence for people when there are no rows
	note    string // a sentence for people behind the rows
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// text sets t for a terminal.
func (t *table) text() string {
	if len(t.rows) == 0 {
		return t.empty + "\n"
	}
	head := make([]string, len(t.columns))
	width := make([]int, len(t.columns))
	for i, name := range t.columns {
		head[i] = strings.ToUpper(strings.TrimPrefix(name, ">"))
	}
	all := append([][]string{head}, t.rows...)
	for _, row := range all {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range all {
		var line strings.Builder
		for i, cell := range row {
			gap := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if strings.HasPrefix(t.columns[i], ">") {
				cell = gap + cell
			} else {
				cell += gap
			}
			line.WriteString(cell + "  ")
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	if t.note != "" {
		b.WriteString(t.note + "\n")
	}
	return b.String()
}

// csv is t with the names of its columns in the first line.
func (t *table) csv() (string, error) {
	var b strings.Builder
	w := csv.NewWriter(&b)
	head := make([]string, len(t.columns))
	for i, name := range t.columns {
		head[i] = strings.ReplaceAll(strings.TrimPrefix(name, ">"), " ", "_")
	}
	if err := w.WriteAll(append([][]string{head}, t.rows...)); err != nil {
		return "", err
	}
	return b.String(), nil
}

// print writes t as a table or CSV, or the value as JSON.
func (t *table) print(cmd *cobra.Command, output string, value any) error {
	var text string
	var err error
	switch output {
	case "table":
		text = t.text()
	case "csv":
		text, err = t.csv()
	case "json":
		var data []byte
		data, err = json.MarshalIndent(value, "", "  ")
		text = string(data) + "\n"
	default:
		err = usageError{fmt.Errorf("%s: -o %q is unknown: say table, json or csv", cmd.CommandPath(), output)}
	}
	if err == nil {
		cmd.Print(text)
	}
	return err
}
