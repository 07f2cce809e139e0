package plan

// Decide returns the outcome for every gang of the state. It is pure: equal
// states give equal plans, in whatever order their lists come, and the state
// is left as it was. It never fails: what can't be decided is refused, with
// the reason.
func Decide(s State) Plan {
	return Plan{At: s.Now}
}

// Explain writes the plan for people: one line a decision, then one line for
// every refusal, in a stable order and wording. A line reads
// "CODE: evidence; remedy".
func (p Plan) Explain() string { return "" }
