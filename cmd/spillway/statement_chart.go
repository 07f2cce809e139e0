package main

import (
	"fmt"

	"spillway.dev/spillway/quota/money"
)

// Sizes of a chart, in units of its SVG.
const (
	chartWidth  = 7200
	chartHeight = 1100 // of the bars
	chartLeft   = 620  // room for the labels of the axis
	chartTop    = 60
)

// chart is a bar for each day of a month.
type chart struct {
	Title  string
	Legend []legend
	Height int64 // of the drawing
	Width  int64
	Left   int64
	Bottom int64 // where the bars stand
	Lines  []gridLine
	Bars   []bar
	Days   []dayLabel
}

type legend struct{ Class, Text string }

type gridLine struct {
	Y    int64
	Text string
}

// bar is one piece of a day's bar.
type bar struct {
	X, Y, Width, Height int64
	Class, Text         string
}

type dayLabel struct {
	X    int64
	Text string
}

// piece is one value of a day, in hundredths.
type piece struct {
	value int64
	class string
	text  string
}

func (p page) timeChart() chart {
	days := make([][]piece, len(p.Statement.Days))
	for i, d := range p.Statement.Days {
		days[i] = []piece{
			{d.Time.OnPrem.Hundredths, "home", fmt.Sprintf("%s, %s: %s", p.day(d.Day), p.words["onprem"], p.hours(d.Time.OnPrem))},
			{d.Time.Burst.Hundredths, "burst", fmt.Sprintf("%s, %s: %s", p.day(d.Day), p.words["rented"], p.hours(d.Time.Burst))},
		}
	}
	c := p.chart(days)
	c.Title = p.words["gpuHoursByDay"]
	c.Legend = []legend{{"home", p.words["onprem"]}, {"burst", p.words["rented"]}}
	return c
}

func (p page) costChart(currency money.Currency) chart {
	days := make([][]piece, len(p.Statement.Days))
	for i, d := range p.Statement.Days {
		for _, c := range d.Charged {
			if c.Exact.Currency == currency {
				days[i] = []piece{{c.Rounded.Nano / 10_000_000, "cost", p.day(d.Day) + ": " + p.money(c.Rounded)}}
			}
		}
	}
	c := p.chart(days)
	c.Title = fmt.Sprintf("%s, %s", p.words["costByDay"], currency)
	return c
}

// chart places the bars. Bars of a day stand on one another.
func (p page) chart(days [][]piece) chart {
	var highest int64
	for _, day := range days {
		highest = max(highest, height(day))
	}
	step := niceStep(highest)
	top := max(1, (highest+step-1)/step) * step
	c := chart{Width: chartWidth, Left: chartLeft, Bottom: chartTop + chartHeight, Height: chartTop + chartHeight + 260}
	for at := int64(0); at <= top; at += step {
		label := p.decimal(at)
		if step%100 == 0 {
			label = label[:len(label)-len(".00")]
		}
		c.Lines = append(c.Lines, gridLine{Y: c.Bottom - scaled(at, top, chartHeight), Text: label})
	}
	slot := int64(chartWidth-chartLeft) / int64(len(days))
	for i, day := range days {
		x := chartLeft + slot*int64(i)
		if i%2 == 0 {
			c.Days = append(c.Days, dayLabel{X: x + slot/2, Text: p.Statement.Days[i].Day[8:]})
		}
		var below int64
		for _, b := range day {
			if b.value == 0 {
				continue
			}
			from, to := scaled(below, top, chartHeight), scaled(below+b.value, top, chartHeight)
			below += b.value
			// What is there can be seen, however little it is.
			size := max(to-from, 12)
			c.Bars = append(c.Bars, bar{X: x + slot/8, Y: c.Bottom - from - size, Width: slot - slot/4, Height: size, Class: b.class, Text: b.text})
		}
	}
	return c
}

func height(day []piece) (sum int64) {
	for _, b := range day {
		sum += b.value
	}
	return sum
}

// niceStep is 1, 2 or 5 times a power of ten, so that at most five steps reach
// the highest value.
func niceStep(highest int64) int64 {
	for unit := int64(1); ; unit *= 10 {
		for _, n := range []int64{1, 2, 5} {
			if highest <= 5*n*unit {
				return n * unit
			}
		}
	}
}
