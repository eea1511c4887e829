package window

import "testing"

func TestTheFirstWindow(t *testing.T) {
	if got := LargestSum([]int{5, 4, 1}, 2); got != 9 {
		t.Errorf("got %d", got)
	}
}

func TestTheLastWindow(t *testing.T) {
	if got := LargestSum([]int{1, 2, 3, 4}, 2); got != 7 {
		t.Errorf("got %d, want 7", got)
	}
}
