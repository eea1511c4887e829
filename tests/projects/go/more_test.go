package window

import "testing"

func TestAllOfThem(t *testing.T) {
	if got := LargestSum([]int{-1, -2}, 2); got != -3 {
		t.Errorf("got %d, want -3", got)
	}
}
