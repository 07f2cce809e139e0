package ec2fake

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// attributes are what filters can see of a resource. What is listed with no
// value is a filter that the action knows and this resource does not meet.
type attributes map[string][]string

// withTags adds the filters tag:KEY and tag-key.
func (a attributes) withTags(shown map[string]string) attributes {
	a["tag-key"] = nil
	for key, value := range shown {
		a["tag:"+key] = []string{value}
		a["tag-key"] = append(a["tag-key"], key)
	}
	return a
}

// filtered keeps what meets all filters of a call ("Filter": filters are joined
// with AND, the values of one with OR).
func filtered[T any](cl call, all []T, see func(T) attributes) ([]T, *refusal) {
	var kept []T
	for _, thing := range all {
		seen := see(thing)
		meets := true
		for _, f := range cl.form.items("Filter") {
			values, known := seen[f["Name"]]
			if !known && !strings.HasPrefix(f["Name"], "tag:") {
				return nil, invalid("InvalidParameterValue", fmt.Sprintf("The filter '%s' is invalid", f["Name"]))
			}
			meets = meets && slices.ContainsFunc(values, func(v string) bool {
				return slices.ContainsFunc(f.list("Value"), func(pattern string) bool { return matches(pattern, v) })
			})
		}
		if meets {
			kept = append(kept, thing)
		}
	}
	return kept, nil
}

// matches reads a filter value as the EC2 User Guide has it ("List and filter
// using the CLI and API"): an asterisk stands for zero or more characters, a
// question mark for zero or one, and a backslash makes them literal.
func matches(pattern, value string) bool {
	if pattern == "" {
		return value == ""
	}
	rest := pattern[1:]
	switch pattern[0] {
	case '*':
		return matches(rest, value) || value != "" && matches(pattern, value[1:])
	case '?':
		return matches(rest, value) || value != "" && matches(rest, value[1:])
	case '\\':
		if rest != "" {
			return value != "" && value[0] == rest[0] && matches(rest[1:], value[1:])
		}
	}
	return value != "" && value[0] == pattern[0] && matches(rest, value[1:])
}

// paged cuts a page out of a list ("Query requests", pagination: NextToken is
// opaque, and a page may hold less than MaxResults).
func (c *Cloud) paged(cl call, length, least, most int) (from, to int, next string, refused *refusal) {
	size, refused := cl.form.number("MaxResults", most)
	if refused != nil {
		return 0, 0, "", refused
	}
	if size < least || size > most {
		return 0, 0, "", invalid("InvalidParameterValue", fmt.Sprintf(
			"Value ( %d ) for parameter maxResults is invalid. Expecting a value between %d and %d.", size, least, most))
	}
	if c.cfg.PageSize > 0 {
		size = min(size, c.cfg.PageSize)
	}
	if token := cl.form["NextToken"]; token != "" {
		text, wrong := base64.StdEncoding.DecodeString(token)
		offset, ok := strings.CutPrefix(string(text), cl.action+"/")
		var err error
		if from, err = strconv.Atoi(offset); wrong != nil || err != nil || !ok || from < 0 {
			return 0, 0, "", invalid("InvalidPaginationToken", "The specified pagination token is not valid or is expired.")
		}
	}
	from = min(from, length)
	to = min(from+size, length)
	if to < length {
		next = base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%s/%d", cl.action, to))
	}
	return from, to, next, nil
}

// pick finds things by id, in the order in which they are asked for; the empty
// list means all.
func pick[T any](ids []string, all []T, id func(T) string, missing func(id string) *refusal) ([]T, *refusal) {
	if len(ids) == 0 {
		return all, nil
	}
	var picked []T
	for _, want := range ids {
		at := slices.IndexFunc(all, func(thing T) bool { return id(thing) == want })
		if at < 0 {
			return nil, missing(want)
		}
		picked = append(picked, all[at])
	}
	return picked, nil
}
