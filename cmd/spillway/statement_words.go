package main

// words are the texts of the page in one language.
func words(lang string) map[string]string {
	if lang == "de" {
		return german()
	}
	return english()
}

func english() map[string]string {
	return map[string]string{
		"title": "GPU statement", "tenant": "Tenant", "period": "Period", "hoursLong": "hours", "issuer": "Charged by", "until": "to",
		"internal":    "Internal charging. This is not an invoice within the meaning of section 14 of the German VAT Act (UStG); no VAT applies.",
		"provisional": "Provisional: the ledger does not reach the end of this month yet.",
		"openNote":    "Not settled yet. Their cost will follow in a later version of this statement.",
		"openClosed":  "Not settled when the month was closed. Their cost follows in the statement of a later month.",
		"closedAt":    "The month was closed at", "noteClosed": "What is posted later is in the statement of a later month.", "corrected": "corrected",
		"charged": "Charged", "gpuHours": "GPU-hours", "onprem": "on-prem", "rented": "rented", "bursts": "Bursts",
		"gpuHoursByDay": "GPU-hours by day", "costByDay": "Cost by day",
		"budgets": "Budgets", "budget": "Budget", "window": "Window", "limit": "Limit", "spent": "Spent", "reserved": "Reserved", "free": "Free", "hard": "hard", "soft": "soft",
		"budgetNote": "As they are booked at the state of the ledger named below, also for other statements of the same budget.",
		"byProject":  "Usage and cost by project, place and GPU model", "project": "Project", "namespace": "Namespace", "place": "Place", "model": "GPU model", "cost": "Cost", "total": "Total",
		"unknown": "not recorded", "notPriced": "no price",
		"burst": "Burst", "provider": "Provider", "ran": "Metered", "billed": "Billed", "ended": "Ended", "certificate": "Wipe certificate",
		"partNote": "◐ runs over the end of a month: cost is the part of this month; times and billed duration are of the whole burst.",
		"waived":   "provider failed: paid by the operator", "overrun": "beyond the reservation: paid by the operator",
		"none": "none found", "notAsked": "not looked up", "noBursts": "No burst was charged in this month.",
		"open": "Open bursts", "canCost": "Can still cost", "latest": "Ends at the latest",
		"notes":     "Notes",
		"noteRound": "Exact amounts are kept to a billionth; each table is rounded once to cents, so that its lines add up to the total.",
		"noteBasis": "Charged is what the provider billed for the machines of a burst, up to what was reserved for it, laid evenly over the metered time.",
		"noteHome":  "On-prem usage is metered and not charged: the ledger holds no price for it. Usage on-prem is recorded by namespace, not by project.",
		"noteCert":  "The signature of every wipe certificate that is named was checked.",
		"madeFrom":  "Made from row", "ofLedger": "of the ledger, recorded", "hash": "hash", "zoneNote": "Times in",
	}
}

func german() map[string]string {
	return map[string]string{
		"title": "GPU-Abrechnung", "tenant": "Mandant", "period": "Zeitraum", "hoursLong": "Stunden", "issuer": "Leistende Stelle", "until": "bis",
		"internal":    "Interne Leistungsverrechnung – keine Rechnung im Sinne des § 14 UStG; ohne Umsatzsteuer.",
		"provisional": "Vorläufig: Das Hauptbuch reicht noch nicht bis zum Ende dieses Monats.",
		"openNote":    "Noch nicht abgerechnet. Ihre Kosten folgen in einer späteren Fassung dieser Abrechnung.",
		"openClosed":  "Beim Abschluss des Monats noch nicht abgerechnet. Ihre Kosten folgen in der Abrechnung eines späteren Monats.",
		"closedAt":    "Der Monat wurde abgeschlossen am", "noteClosed": "Was später gebucht wird, steht in der Abrechnung eines späteren Monats.", "corrected": "berichtigt",
		"charged": "Belastet", "gpuHours": "GPU-Stunden", "onprem": "eigenes Rechenzentrum", "rented": "gemietet", "bursts": "Bursts",
		"gpuHoursByDay": "GPU-Stunden je Tag", "costByDay": "Kosten je Tag",
		"budgets": "Budgets", "budget": "Budget", "window": "Zeitfenster", "limit": "Grenze", "spent": "Verbraucht", "reserved": "Reserviert", "free": "Frei", "hard": "hart", "soft": "weich",
		"budgetNote": "Gebucht bis zu dem unten genannten Stand des Hauptbuchs, auch für andere Abrechnungen desselben Budgets.",
		"byProject":  "Nutzung und Kosten nach Projekt, Ort und GPU-Modell", "project": "Projekt", "namespace": "Namespace", "place": "Ort", "model": "GPU-Modell", "cost": "Kosten", "total": "Summe",
		"unknown": "nicht erfasst", "notPriced": "ohne Preis",
		"burst": "Burst", "provider": "Anbieter", "ran": "Gemessen", "billed": "Berechnet", "ended": "Ende", "certificate": "Löschzertifikat",
		"partNote": "◐ läuft über ein Monatsende: Kosten sind der Anteil dieses Monats; Zeiten und berechnete Dauer gelten für den ganzen Burst.",
		"waived":   "Anbieter ausgefallen: trägt der Betreiber", "overrun": "über der Reservierung: trägt der Betreiber",
		"none": "keines gefunden", "notAsked": "nicht nachgesehen", "noBursts": "In diesem Monat wurde kein Burst belastet.",
		"open": "Offene Bursts", "canCost": "Kann noch kosten", "latest": "Endet spätestens",
		"notes":     "Hinweise",
		"noteRound": "Genaue Beträge sind auf ein Milliardstel geführt; jede Tabelle wird einmal auf Cent gerundet, sodass ihre Zeilen die Summe ergeben.",
		"noteBasis": "Belastet wird, was der Anbieter für die Maschinen eines Bursts berechnet, bis zur Höhe der Reservierung, gleichmäßig über die gemessene Zeit verteilt.",
		"noteHome":  "Nutzung im eigenen Rechenzentrum ist gemessen, aber nicht belastet: Das Hauptbuch enthält dafür keinen Preis. Sie ist nach Namespace erfasst, nicht nach Projekt.",
		"noteCert":  "Die Signatur jedes genannten Löschzertifikats wurde geprüft.",
		"madeFrom":  "Erstellt aus Zeile", "ofLedger": "des Hauptbuchs, gebucht", "hash": "Prüfsumme", "zoneNote": "Zeiten in",
	}
}
