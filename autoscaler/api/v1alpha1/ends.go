package v1alpha1

// Reasons why a burst ends. They stand in its conditions Ending, Failed and
// Complete, the planner reads from them what the next attempt must avoid, and
// settlement who pays.
const (
	EndSucceeded     = "Succeeded"     // the work is done
	EndServedLocally = "ServedLocally" // the work found room at home
	EndWorkloadGone  = "WorkloadGone"  // the work was deleted
	EndDeleted       = "Deleted"       // the Burst was deleted

	EndWorkFailed     = "WorkFailed"     // by its own error
	EndOutOfTime      = "OutOfTime"      // its run time was over
	EndStagingRefused = "StagingRefused" // its inputs can't be had

	EndBudgetExceeded = "BudgetExceeded" // the ledger refused the ceiling, or the next slice of it
	EndNoReservation  = "NoReservation"  // the ledger has no open reservation

	EndSoldOut      = "SoldOut"      // the market: take another offer
	EndLimitReached = "LimitReached" // the market: a person must raise our limit at the cloud
	EndRejected     = "Rejected"     // the cloud: never, as it is asked for

	EndBuyDeadline    = "BuyDeadline"    // the cloud did not answer in time
	EndJoinDeadline   = "JoinDeadline"   // the machine never became a node
	EndReadyDeadline  = "ReadyDeadline"  // its GPUs never became ready
	EndMachineLost    = "MachineLost"    // the machine is gone, or unreachable for good
	EndStagingStalled = "StagingStalled" // inputs don't get to the machine
	EndCleanupFailed  = "CleanupFailed"  // a failed purchase left something billable
	EndTooLate        = "TooLate"        // nothing was asked before the stamp passed
	EndBroken         = "Broken"         // accepted, and then the cloud gave up
	EndVanished       = "Vanished"       // bought, and then gone without our doing
)
