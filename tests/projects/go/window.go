// Package window finds sums of neighbours.
package window

// LargestSum returns the largest sum of size neighbours, 0 if there are fewer.
func LargestSum(values []int, size int) int {
	best := 0
	for start := 0; start+size < len(values); start++ {
		sum := 0
		for _, value := range values[start : start+size] {
			sum += value
		}
		if start == 0 || sum > best {
			best = sum
		}
	}
	return best
}
